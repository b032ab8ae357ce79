"""Offline use: a model in this process, prompts in, completions out."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeAlias

from allmetal.config import EngineConfig
from allmetal.engine.engine import Engine
from allmetal.engine.output import OutputProcessor, Prompt, tokenize
from allmetal.engine.vectors import (
    Classification,
    Embedding,
    check_classifies,
    check_embeds,
    classification,
    embedding,
    judges_pairs,
    pooled,
    relevance,
    similarity,
)
from allmetal.errors import EngineDeadError, RequestError
from allmetal.executor.ahead import link_ahead
from allmetal.platform.contract import ModelFacts
from allmetal.request import PoolingParams, RequestOutput, SamplingParams
from allmetal.text import load_text
from allmetal.text.pairs import Encoded, encode_pair

Message: TypeAlias = Mapping[str, Any]
_Inbox: TypeAlias = dict[str, RequestOutput]
"""What is new for one call, by request."""


class LLM:
    """A loaded model.

    Calls may overlap, from several threads and as iterators that are not used up: their requests
    run in one batch, and each call gets the outputs of its own.

    `options` are the fields of `EngineConfig`.  Raises AllmetalError if the model cannot be served.

    >>> with LLM("path/to/model") as llm:
    ...     [out] = llm.generate("The capital of France is", SamplingParams(max_tokens=8))
    ...     print(out.outputs[0].text)
    """

    def __init__(self, model: str, **options: Any) -> None:
        self.config = EngineConfig(model=model, **options)
        link_ahead()
        self.tokenizer, self.generation_config = load_text(self.config, late=True)
        self.engine = Engine.from_config(self.config)
        self._outputs = OutputProcessor(self.tokenizer)
        self._num_requests = 0
        self._lock = threading.RLock()
        self._inboxes: dict[str, _Inbox] = {}
        self._closed = False

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = False,
    ) -> list[RequestOutput]:
        """Complete each prompt (text or token ids), in the order given.

        `sampling` is one for all or one for each.  Raises RequestError if a prompt cannot be
        served, before any of them is.
        """
        many = _as_list(prompts)
        params = _one_each(sampling, len(many))
        ids, inbox = self._add(many, params)
        finished: dict[str, RequestOutput] = {}
        try:
            with _progress(len(ids), enabled=use_tqdm) as bar:
                for output in self._run(ids, inbox):
                    if output.finished:
                        finished[output.request_id] = output
                        bar.update()
        finally:
            self._drop(ids)
        return [finished[request_id] for request_id in ids]

    def stream(
        self, prompt: Prompt, sampling: SamplingParams | None = None
    ) -> Generator[RequestOutput, None, None]:
        """Complete one prompt; yields the growing output after each token.

        Closing the iterator early aborts the request.
        """
        ids, inbox = self._add([prompt], [sampling or SamplingParams()])
        try:
            yield from self._run(ids, inbox)
        finally:
            self._drop(ids)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = False,
        **template: Any,
    ) -> list[RequestOutput]:
        """Complete one conversation, or many.  `template` goes to the chat template."""
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else messages
        prompts = [self.chat_prompt(conversation, **template) for conversation in conversations]  # type: ignore[arg-type]
        return self.generate(prompts, sampling, use_tqdm=use_tqdm)

    def embed(self, texts: Prompt | Sequence[Prompt]) -> list[Embedding]:
        """A vector of each text, in the order given.  RequestError of a model that makes none."""
        check_embeds(self._facts)
        return [embedding(output) for output in self._pool(map(self._encoded, _as_list(texts)))]

    def classify(self, texts: Prompt | Sequence[Prompt]) -> list[Classification]:
        """The likeliest label of each text.  RequestError of a model that has no labels."""
        check_classifies(self._facts)
        outputs = self._pool(map(self._encoded, _as_list(texts)))
        return [classification(output, self._facts.labels) for output in outputs]

    def score(self, query: str, documents: Sequence[str]) -> list[float]:
        """How well each document answers the query: by a reranker in [0, 1], else the cosine of
        their vectors.  RequestError of a model that does neither."""
        if judges_pairs(self._facts):
            pairs = [encode_pair(self.tokenizer, (query, text)) for text in documents]
            return [relevance(output) for output in self._pool(pairs)]
        asked, *answers = self.embed([query, *documents])
        return [similarity(asked.vector, answer.vector) for answer in answers]

    @property
    def _facts(self) -> ModelFacts:
        assert self.engine.plan is not None
        return self.engine.plan.model

    def _encoded(self, text: Prompt) -> Encoded:
        return Encoded(tokenize(self.tokenizer, text))

    def _pool(self, texts: Iterable[Encoded]) -> list[RequestOutput]:
        many = list(texts)
        pooling = [PoolingParams(second_at=text.second_at) for text in many]
        prompts = [text.token_ids for text in many]
        ids, inbox = self._add(prompts, _one_each(None, len(many)), pooling)
        try:
            finished = {output.request_id: output for output in self._run(ids, inbox)}
        finally:
            self._drop(ids)
        return [pooled(finished[request_id]) for request_id in ids]

    def chat_prompt(self, messages: Sequence[Message], **template: Any) -> list[int]:
        """The token ids of a conversation, special tokens as the template writes them."""
        return self.tokenizer.encode_chat(messages, **template)

    def close(self) -> None:
        """Give everything back.  Calls that are under way raise EngineDeadError."""
        with self._lock:
            self._closed = True
            self.engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _add(
        self,
        prompts: Sequence[Prompt],
        params: Sequence[SamplingParams],
        pooling: Sequence[PoolingParams] | None = None,
    ) -> tuple[list[str], _Inbox]:
        """Give all to the engine, or none; their ids, and where their outputs will come."""
        added: list[str] = []
        inbox: _Inbox = {}
        with self._lock:
            self._check_open()
            try:
                pool = None
                for index, (prompt, sampling) in enumerate(zip(prompts, params, strict=True)):
                    if pooling is not None:
                        pool = pooling[index]
                    request_id = f"offline-{self._num_requests}"
                    self._num_requests += 1
                    added.append(request_id)
                    for request in self._outputs.open(request_id, prompt, sampling, pooling=pool):
                        self.engine.add(request)
                    self._inboxes[request_id] = inbox
            except BaseException:
                self._drop(added)
                raise
        return added, inbox

    def _run(self, ids: Sequence[str], inbox: _Inbox) -> Iterator[RequestOutput]:
        """The outputs of these requests as they change, until all are finished."""
        left = len(ids)
        while left:
            with self._lock:
                if not inbox:
                    self._check_open()
                    self._step()
                news = list(inbox.values())
                inbox.clear()
                left -= sum(output.finished for output in news)
            for output in news:
                if output.refusal is not None:
                    raise RequestError(output.refusal.message, hint=output.refusal.hint)
            yield from news

    def _step(self) -> None:
        """Advance all requests, and put each output where its call will look."""
        taken = self._outputs.take(self.engine.step())
        self.engine.abort(taken.stopped)
        for output in taken.outputs:
            self._inboxes[output.request_id][output.request_id] = output

    def _drop(self, ids: Sequence[str]) -> None:
        """Forget these requests, and end those that are under way."""
        with self._lock:
            for request_id in ids:
                self._inboxes.pop(request_id, None)
                self.engine.abort(self._outputs.close(request_id))

    def _check_open(self) -> None:
        if self._closed:
            raise EngineDeadError("the model was closed", hint="make a new LLM")


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, bytes | Mapping) or not isinstance(prompts, Iterable):
        raise RequestError(
            f"prompts must be a text, token ids, or a list of those, not {type(prompts).__name__}"
        )
    many = list(prompts)
    if many and isinstance(many[0], int):
        return [many]  # type: ignore[list-item]
    return many  # type: ignore[return-value]


def _one_each(
    sampling: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    if sampling is None or isinstance(sampling, SamplingParams):
        return [sampling or SamplingParams()] * count
    if len(sampling) != count:
        raise RequestError(f"{len(sampling)} sampling parameters for {count} prompts")
    return list(sampling)


def _progress(total: int, *, enabled: bool) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, desc="completions", unit="req", disable=not enabled)
