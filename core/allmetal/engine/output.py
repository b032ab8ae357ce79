"""The text side of requests: prompts become token ids, token ids become text that may stop."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from allmetal.errors import RequestError
from allmetal.request import (
    CompletionOutput,
    PoolingParams,
    Request,
    RequestOutput,
    SamplingParams,
    TokenDelta,
)
from allmetal.text.detokenizer import Detokenizer
from allmetal.text.tokenizer import Tokenizer

Prompt: TypeAlias = str | Sequence[int]


@dataclass(slots=True)
class _Completion:
    """One of a request's n completions; its engine request has an id of its own."""

    parent: RequestOutput
    output: CompletionOutput
    detokenizer: Detokenizer


@dataclass(slots=True)
class Taken:
    """`outputs`: requests that changed, each once.  `stopped`: engine requests to abort, since
    their text reached a stop string."""

    outputs: list[RequestOutput] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)


def tokenize(tokenizer: Tokenizer, prompt: Prompt) -> list[int]:
    """Raises RequestError for numbers that are no token ids of any model, and for other things."""
    if isinstance(prompt, str):
        return tokenizer.encode(prompt)
    if isinstance(prompt, bytes) or not isinstance(prompt, Iterable):
        raise RequestError(f"a prompt must be a text or token ids, not {type(prompt).__name__}")
    token_ids = list(prompt)
    for item in token_ids:
        if not isinstance(item, int):
            raise RequestError(f"token ids must be integers, not {item!r}")
    if token_ids and not (0 <= min(token_ids) and max(token_ids) < 2**31):
        raise RequestError("the prompt holds a token id outside of the vocabulary")
    return token_ids


def word_ids(tokenizer: Tokenizer, sampling: SamplingParams) -> tuple[tuple[int, ...], ...]:
    """All that must not come: each bad word as it stands at the start of a text and after a space,
    and what is given as ids."""
    words = sampling.bad_words
    forms = dict.fromkeys(form for word in words for form in (word, f" {word.lstrip()}"))
    encoded = (tokenizer.encode(form, add_special_tokens=False) for form in forms)
    return (*sampling.bad_word_ids, *dict.fromkeys(tuple(ids) for ids in encoded if ids))


class OutputProcessor:
    """Holds every open request of one front end."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._completions: dict[str, _Completion] = {}
        self._children: dict[str, list[str]] = {}

    def open(
        self,
        request_id: str,
        prompt: Prompt,
        sampling: SamplingParams,
        *,
        prompt_token_ids: list[int] | None = None,
        bad_word_ids: tuple[tuple[int, ...], ...] | None = None,
        priority: int = 0,
        cache_salt: str = "",
        pooling: PoolingParams | None = None,
    ) -> list[Request]:
        """The engine requests of one request, `n` of them.  `prompt_token_ids` and `bad_word_ids`
        where the caller has tokenised already.  With `pooling` its output is a vector.

        Raises RequestError if the prompt is none, or the id or one made of it is taken.
        """
        token_ids = prompt_token_ids
        if token_ids is None:
            token_ids = tokenize(self.tokenizer, prompt)
        if bad_word_ids is None:
            bad_word_ids = word_ids(self.tokenizer, sampling)
        resolved = replace(sampling, n=1, bad_words=(), bad_word_ids=bad_word_ids)
        parent = RequestOutput(
            request_id=request_id,
            prompt=prompt if isinstance(prompt, str) else None,
            prompt_token_ids=token_ids,
            outputs=[CompletionOutput(index=index) for index in range(sampling.n)],
        )
        requests = [
            Request(
                request_id=request_id if sampling.n == 1 else f"{request_id}/{index}",
                prompt_token_ids=token_ids,
                sampling=_one_of(resolved, index),
                eos_token_ids=self.tokenizer.eos_token_ids,
                priority=priority,
                arrival_time=time.time(),
                cache_salt=cache_salt,
                pooling=pooling,
            )
            for index in range(sampling.n)
        ]
        for request in requests:
            if request.request_id in self._completions:
                raise RequestError(f"a request {request.request_id!r} is under way already")
        for request, output in zip(requests, parent.outputs, strict=True):
            detokenizer = Detokenizer(
                self.tokenizer,
                token_ids,
                skip_special_tokens=sampling.skip_special_tokens,
                shown=sampling.shown_special_tokens,
                stop=sampling.stop,
                include_stop_str_in_output=sampling.include_stop_str_in_output,
                min_tokens=sampling.min_tokens,
            )
            self._completions[request.request_id] = _Completion(parent, output, detokenizer)
        self._children[request_id] = [request.request_id for request in requests]
        return requests

    def close(self, request_id: str) -> list[str]:
        """Forget a request; returns the engine requests that are still to be aborted."""
        children = self._children.pop(request_id, [])
        return [child for child in children if self._completions.pop(child, None) is not None]

    @property
    def open_requests(self) -> list[str]:
        return list(self._children)

    def take(self, deltas: Iterable[TokenDelta]) -> Taken:
        """Apply what a step brought.  Deltas of requests that are closed are dropped."""
        taken = Taken()
        changed: dict[str, RequestOutput] = {}
        for delta in deltas:
            completion = self._completions.get(delta.request_id)
            if completion is None:
                continue
            parent = completion.parent
            self._apply(completion, delta)
            if completion.output.finish_reason is not None:
                del self._completions[delta.request_id]
                if delta.finish_reason is None:
                    taken.stopped.append(delta.request_id)
                parent.finished = all(output.finish_reason for output in parent.outputs)
                if parent.finished:
                    self._children.pop(parent.request_id, None)
            changed[parent.request_id] = parent
        taken.outputs = list(changed.values())
        return taken

    def _apply(self, completion: _Completion, delta: TokenDelta) -> None:
        parent, output = completion.parent, completion.output
        detokenizer = completion.detokenizer
        output.token_ids += delta.token_ids
        output.text += detokenizer.push(delta.token_ids)
        if delta.logprobs is not None:
            if output.logprobs is None:
                output.logprobs = []
            output.logprobs += delta.logprobs
        if delta.prompt_logprobs is not None:
            parent.prompt_logprobs = delta.prompt_logprobs
        if delta.num_cached_tokens:
            parent.num_cached_tokens = delta.num_cached_tokens
        if delta.queue_s:
            parent.queue_s = max(parent.queue_s, delta.queue_s)
        if delta.pooled is not None:
            parent.pooled = delta.pooled
        if delta.error is not None:
            parent.error = delta.error
        if delta.refusal is not None:
            parent.refusal = delta.refusal
        if detokenizer.stopped is not None:
            output.finish_reason, output.stop_reason = "stop", detokenizer.stopped
        elif delta.finish_reason is not None:
            output.text += detokenizer.finish()
            output.finish_reason, output.stop_reason = delta.finish_reason, delta.stop_reason


def _one_of(sampling: SamplingParams, index: int) -> SamplingParams:
    """One completion's own parameters; the prompt's logprobs come with the first only."""
    if index == 0:
        return sampling
    seed = None if sampling.seed is None else sampling.seed + index
    return replace(sampling, seed=seed, prompt_logprobs=None)
