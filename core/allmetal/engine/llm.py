"""Offline use: a model in this process, prompts in, completions out."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeAlias

from allmetal.config import EngineConfig
from allmetal.engine.engine import Engine
from allmetal.engine.output import OutputProcessor, Prompt
from allmetal.errors import RequestError
from allmetal.request import RequestOutput, SamplingParams
from allmetal.text import load_text

Message: TypeAlias = Mapping[str, Any]


class LLM:
    """A loaded model.

    `options` are the fields of `EngineConfig`.  Raises AllmetalError if the model cannot be served.

    >>> with LLM("path/to/model") as llm:
    ...     [out] = llm.generate("The capital of France is", SamplingParams(max_tokens=8))
    ...     print(out.outputs[0].text)
    """

    def __init__(self, model: str, **options: Any) -> None:
        self.config = EngineConfig(model=model, **options)
        self.tokenizer, self.generation_config = load_text(self.config)
        self.engine = Engine.from_config(self.config)
        self._outputs = OutputProcessor(self.tokenizer)
        self._num_requests = 0

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
        ids = self._add(many, params)
        finished: dict[str, RequestOutput] = {}
        with _progress(len(ids), enabled=use_tqdm) as bar:
            for output in self._run():
                if output.finished:
                    finished[output.request_id] = output
                    bar.update()
        return [finished[request_id] for request_id in ids]

    def stream(
        self, prompt: Prompt, sampling: SamplingParams | None = None
    ) -> Generator[RequestOutput, None, None]:
        """Complete one prompt; yields the growing output after each token.

        Closing the iterator early aborts the request.
        """
        [request_id] = self._add([prompt], [sampling or SamplingParams()])
        try:
            yield from self._run()
        finally:
            self.engine.abort(self._outputs.close(request_id))

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

    def chat_prompt(self, messages: Sequence[Message], **template: Any) -> list[int]:
        """The token ids of a conversation, special tokens as the template writes them."""
        return self.tokenizer.encode_chat(messages, **template)

    def close(self) -> None:
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

    def _add(self, prompts: Sequence[Prompt], params: Sequence[SamplingParams]) -> list[str]:
        added: list[str] = []
        try:
            for prompt, sampling in zip(prompts, params, strict=True):
                request_id = f"offline-{self._num_requests}"
                self._num_requests += 1
                added.append(request_id)
                for request in self._outputs.open(request_id, prompt, sampling):
                    self.engine.add(request)
        except RequestError:
            for request_id in added:
                self.engine.abort(self._outputs.close(request_id))
            raise
        return added

    def _run(self) -> Iterator[RequestOutput]:
        """Step until nothing is left."""
        while self.engine.has_work:
            taken = self._outputs.take(self.engine.step())
            self.engine.abort(taken.stopped)
            yield from taken.outputs


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    if prompts and isinstance(prompts[0], int):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


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
