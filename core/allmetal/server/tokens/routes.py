"""POST /tokenize and /detokenize, and the same under /v1; the shapes are those of vLLM's server."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from allmetal.engine.output import tokenize as token_ids_of
from allmetal.errors import RequestError
from allmetal.server.bodies import Body, Int, decode, takes
from allmetal.server.conversation import for_template, template_arguments
from allmetal.server.responses import JSON
from allmetal.server.state import ServerState, state_of
from allmetal.text.tokenizer import Tokenizer


class TokenizeRequest(Body, kw_only=True):
    """A prompt, or a conversation as the chat template writes it."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeRequest(Body, kw_only=True):
    model: str | None = None
    tokens: list[Int]
    skip_special_tokens: bool | None = None


def routes() -> list[BaseRoute]:
    return [
        Route(f"{prefix}/{name}", handler, methods=["POST"])
        for prefix in ("", "/v1")
        for name, handler in (("tokenize", tokenize), ("detokenize", detokenize))
    ]


@takes(TokenizeRequest)
async def tokenize(request: Request) -> Response:
    state = state_of(request)
    body = decode(await request.body(), TokenizeRequest)
    state.check_model(body.model)
    return JSON(await tokenized(state, body))


async def tokenized(state: ServerState, body: TokenizeRequest) -> dict[str, Any]:
    """`{tokens, count, max_model_len, token_strs}`."""
    engine = state.engine
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("give either a prompt or messages")
    if body.prompt is not None:
        special = body.add_special_tokens is not False
        encode = partial(engine.tokenizer.encode, add_special_tokens=special)
        tokens = await engine.in_thread(encode, body.prompt)
    else:
        tokens = await _of_chat(state, body)
    answer = {"tokens": tokens, "count": len(tokens), "max_model_len": engine.ready.max_model_len}
    if body.return_token_strs:
        answer["token_strs"] = [engine.tokenizer.token(token) for token in tokens]
    return answer


async def _of_chat(state: ServerState, body: TokenizeRequest) -> list[int]:
    if body.add_special_tokens:
        raise RequestError(
            "add_special_tokens is for prompts", hint="a chat template writes its own"
        )
    return await state.engine.chat_prompt(
        for_template(body.messages or []),
        add_generation_prompt=body.add_generation_prompt is not False,
        tools=body.tools,
        **template_arguments(body.chat_template_kwargs),
    )


@takes(DetokenizeRequest)
async def detokenize(request: Request) -> Response:
    state = state_of(request)
    body = decode(await request.body(), DetokenizeRequest)
    state.check_model(body.model)
    text = await state.engine.in_thread(
        _decoded, state.engine.tokenizer, body.tokens, body.skip_special_tokens is True
    )
    return JSON({"prompt": text})


def _decoded(tokenizer: Tokenizer, tokens: list[int], skip_special: bool) -> str:
    token_ids = token_ids_of(tokenizer, tokens)
    if token_ids and max(token_ids) >= tokenizer.vocab_size:
        raise RequestError(
            f"the vocabulary has {tokenizer.vocab_size} tokens, "
            f"so there is no token {max(token_ids)}"
        )
    return tokenizer.decode(token_ids, skip_special_tokens=skip_special)
