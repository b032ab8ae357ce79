"""What a request must satisfy before the engine takes it."""

from __future__ import annotations

from collections.abc import Container

from allmetal.errors import RequestError
from allmetal.request import Request


def check_request(
    request: Request, max_model_len: int, vocab_size: int, known: Container[str] = ()
) -> None:
    """Raises RequestError with a hint; `known` are the ids of requests under way."""
    num_prompt = len(request.prompt_token_ids)
    if request.request_id in known:
        raise RequestError(f"a request {request.request_id!r} is under way already")
    if num_prompt == 0:
        raise RequestError("the prompt is empty", hint="give at least one token")
    if request.pooling is None and num_prompt >= max_model_len:
        raise RequestError(
            f"the prompt has {num_prompt} tokens; with at least one to generate, the limit of "
            f"{max_model_len} allows {max_model_len - 1}",
            hint="shorten the prompt, or start with a larger --max-model-len",
        )
    if num_prompt > max_model_len:
        raise RequestError(
            f"the text has {num_prompt} tokens; the limit is {max_model_len}",
            hint="shorten or split the text",
        )
    sampling = request.sampling
    named = {
        "prompt": request.prompt_token_ids,
        "stop_token_ids": sampling.stop_token_ids,
        "allowed_token_ids": sampling.allowed_token_ids or (),
        "logit_bias": sampling.logit_bias,
        "bad_words": [token for word in sampling.bad_word_ids for token in word],
    }
    for where, token_ids in named.items():
        if token_ids and not (0 <= min(token_ids) and max(token_ids) < vocab_size):
            raise RequestError(
                f"{where} holds a token id outside of the vocabulary (0 to {vocab_size - 1})"
            )
    if sampling.logprobs is not None and sampling.logprobs > vocab_size:
        raise RequestError(f"logprobs must not exceed the vocabulary of {vocab_size} tokens")
