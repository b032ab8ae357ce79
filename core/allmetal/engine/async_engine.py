"""The engine for servers: in a process of its own, behind async generators.

Tokenising runs in threads, computing in the engine's process; the event loop only moves messages
and appends text.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, cast

import msgspec

from allmetal.config import EngineConfig, LogFormat
from allmetal.engine import ipc
from allmetal.engine.asks import AnyAsk, Ask, AskStats
from allmetal.engine.engine import EngineStats
from allmetal.engine.link import Link, again
from allmetal.engine.output import OutputProcessor, Prompt, tokenize, word_ids
from allmetal.engine.owned import OwnedEngine
from allmetal.engine.process import ENGINE
from allmetal.errors import AllmetalError, EngineDeadError, RequestError
from allmetal.platform.plan import Plan
from allmetal.request import PoolingParams, RequestOutput, SamplingParams
from allmetal.text import load_text
from allmetal.text.tokenizer import Tokenizer

A = TypeVar("A")
T = TypeVar("T")

_TOKENIZER_THREADS = 2
# Characters or tokens that are looked at sooner than a thread is woken.
_SHORT = 256


@dataclass(slots=True)
class _Stream:
    """One open request.  Outputs are cumulative, so only the latest is kept."""

    children: list[str]
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    output: RequestOutput | None = None
    error: AllmetalError | None = None

    def put(self, output: RequestOutput) -> None:
        self.output = output
        self.changed.set()

    def fail(self, error: AllmetalError) -> None:
        self.error = error
        self.changed.set()


class AsyncEngine:
    """A running engine.  Made by `await AsyncEngine.start(config)`, ended by `close`.

    It belongs to the event loop it was started in.
    """

    tokenizer: Tokenizer
    generation_config: Mapping[str, Any]
    ready: ipc.Ready

    def __init__(self, config: EngineConfig, link: Link) -> None:
        self.config = config
        self.error: EngineDeadError | None = None
        """Why the engine is gone; None while it lives."""
        self.gone_for_good = asyncio.Event()
        self._link = link
        self._streams: dict[str, _Stream] = {}
        self._calls: dict[int, tuple[Ask[Any], asyncio.Future[Any]]] = {}
        self._call_ids = itertools.count()
        self._threads = ThreadPoolExecutor(_TOKENIZER_THREADS, thread_name_prefix="tokenize")

    @classmethod
    async def start(
        cls,
        config: EngineConfig,
        *,
        factory: str = ENGINE,
        restart: int = 0,
        log_format: LogFormat | None = None,
    ) -> AsyncEngine:
        """Start the process and load the model.  Raises what loading raised there.

        `factory` names what makes an Engine from a config, as "module:attribute".  An engine that
        dies is started again up to `restart` times in a row.
        """
        link = OwnedEngine(config, factory=factory, restart=restart, log_format=log_format)
        return await cls.join(config, link)

    @classmethod
    async def join(cls, config: EngineConfig, link: Link) -> AsyncEngine:
        """Be a front end of an engine that is reached by `link`, which is closed with this."""
        engine = cls(config, link)
        try:
            await asyncio.gather(engine._open(), engine._load_text())
        except BaseException:
            await engine.close()
            raise
        return engine

    async def _open(self) -> None:
        self.ready = await self._link.open(self)

    async def _load_text(self) -> None:
        self.tokenizer, self.generation_config = await self.in_thread(load_text, self.config)
        self._outputs = OutputProcessor(self.tokenizer)

    # ---- requests --------------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        return self.ready.plan

    @property
    def pid(self) -> int:
        """Of the engine's process."""
        return self._link.pid

    async def generate(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str = "",
        pooling: PoolingParams | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Complete a prompt (text or token ids); yields the growing output as tokens come.  With
        `pooling` the one output has the prompt's vector, as `engine.vectors` reads it.

        Closing the generator early aborts the request.  A slow reader skips intermediate states.
        Raises RequestError if the request cannot be served, EngineDeadError if the engine ends.
        """
        request_id = request_id or f"req-{uuid.uuid4().hex}"
        self._check_alive()
        sampling = sampling or SamplingParams()
        if isinstance(prompt, str | list) and len(prompt) <= _SHORT:
            token_ids = tokenize(self.tokenizer, prompt)
        else:
            token_ids = await self.in_thread(tokenize, self.tokenizer, prompt)
        bad_word_ids = sampling.bad_word_ids
        if sampling.bad_words:
            bad_word_ids = await self.in_thread(word_ids, self.tokenizer, sampling)
        self._check_alive()
        if request_id in self._streams:
            raise RequestError(f"a request {request_id!r} is under way already")
        requests = self._outputs.open(
            request_id,
            prompt,
            sampling,
            prompt_token_ids=token_ids,
            bad_word_ids=bad_word_ids,
            priority=priority,
            cache_salt=cache_salt,
            pooling=pooling,
        )
        stream = _Stream([request.request_id for request in requests])
        self._streams[request_id] = stream
        try:
            self._send(ipc.Add(request_id, requests))
            while True:
                await stream.changed.wait()
                stream.changed.clear()
                if (output := stream.output) is not None:
                    if output.refusal is not None:
                        raise RequestError(output.refusal.message, hint=output.refusal.hint)
                    finished = output.finished  # it may get so while the reader has it
                    yield output
                    if finished:
                        return
                if stream.error is not None:
                    raise stream.error
        finally:
            del self._streams[request_id]
            unfinished = self._outputs.close(request_id)
            if unfinished and self.error is None and stream.error is None:
                self._send(ipc.Abort(unfinished))

    async def abort(self, request_id: str) -> None:
        """End a request; its stream ends with finish reason "abort".  Unknown ids are no error."""
        if self.error is None and (stream := self._streams.get(request_id)) is not None:
            self._send(ipc.Abort(stream.children))

    async def chat_prompt(
        self, messages: Sequence[Mapping[str, Any]], **template: Any
    ) -> list[int]:
        """The token ids of a conversation.  Raises RequestError if the template cannot take it."""
        return await self.in_thread(partial(self.tokenizer.encode_chat, messages, **template))

    async def stats(self) -> EngineStats:
        """The engine's numbers; answered between two of its steps."""
        return await self.call(AskStats())

    async def call(self, ask: Ask[A]) -> A:
        """Have the engine do something between two of its steps (see `engine.asks`).

        Raises what it raised there, and EngineDeadError if the engine ends.
        """
        self._check_alive()
        call_id = next(self._call_ids)
        future: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = (ask, future)
        try:
            self._send(ipc.Call(call_id, cast(AnyAsk, ask)))
            return await future
        finally:
            del self._calls[call_id]

    async def in_thread(self, work: Callable[..., T], *args: Any) -> T:
        """Run `work(*args)` in one of the text threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *args)

    # ---- the end ---------------------------------------------------------------------------

    async def close(self, *, drain_s: float = 0.0) -> None:
        """Give open requests `drain_s` to finish, end the process, free everything.

        Requests that are still open raise EngineDeadError.  Closing twice is no error.
        """
        with contextlib.suppress(asyncio.TimeoutError):
            async with asyncio.timeout(drain_s):
                while drain_s and self._streams and self.error is None:
                    await asyncio.sleep(0.02)
        if self.error is None:
            self.down(EngineDeadError("the engine was closed"))
        await self._link.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _check_alive(self) -> None:
        if self.error is not None:
            raise again(self.error)

    def down(self, error: EngineDeadError) -> None:
        """Every open request and call gets `error`."""
        self.error = error
        for stream in self._streams.values():
            if stream.error is None:
                stream.fail(again(error))
        for call_id in self._calls:
            self._answer(call_id, again(error))
        if self._link.lost:
            self.gone_for_good.set()

    def up(self, ready: ipc.Ready) -> None:
        self.ready, self.error = ready, None

    # ---- messages --------------------------------------------------------------------------

    def _send(self, message: ipc.Message) -> None:
        self._link.send(message)

    def take(self, message: ipc.FromEngine) -> None:
        match message:
            case ipc.Step(deltas):
                taken = self._outputs.take(deltas)
                if taken.stopped:
                    self._send(ipc.Abort(taken.stopped))
                for output in taken.outputs:
                    self._streams[output.request_id].put(output)
            case ipc.Rejected(request_id, failure):
                if request_id in self._streams:
                    self._streams[request_id].fail(ipc.as_error(failure))
            case ipc.Answer(call_id, value):
                self._answer(call_id, value)
            case ipc.Refused(call_id, failure):
                self._answer(call_id, ipc.as_error(failure))
            case ipc.Hello() | ipc.Ready() | ipc.Failure():
                raise AssertionError("for the link")

    def _answer(self, call_id: int, value: msgspec.Raw | AllmetalError) -> None:
        ask, future = self._calls.get(call_id, (None, None))
        if ask is None or future is None or future.done():  # nobody waits any more
            return
        if isinstance(value, AllmetalError):
            future.set_exception(value)
        else:
            future.set_result(msgspec.msgpack.decode(value, type=ask.answer))
