"""The engine for servers: in a process of its own, behind async generators.

Tokenising runs in threads, computing in the engine's process; the event loop only moves messages
and appends text.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import traceback
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, cast

import msgspec
import zmq.asyncio

from allmetal.config import EngineConfig
from allmetal.engine import ipc
from allmetal.engine.asks import AnyAsk, Ask, AskStats
from allmetal.engine.engine import EngineStats
from allmetal.engine.output import OutputProcessor, Prompt, tokenize, word_ids
from allmetal.engine.process import ENGINE, EngineProcess
from allmetal.errors import AllmetalError, EngineDeadError, RequestError
from allmetal.platform.plan import Plan
from allmetal.request import RequestOutput, SamplingParams
from allmetal.text import load_text
from allmetal.text.tokenizer import Tokenizer

A = TypeVar("A")
T = TypeVar("T")

# What a process said before it ended may still be on its way when its end is noticed.
_LAST_WORDS_S = 0.1
_STOP_GRACE_S = 5.0
_TOKENIZER_THREADS = 2


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

    def __init__(self, config: EngineConfig, *, factory: str = ENGINE) -> None:
        loop = asyncio.get_running_loop()
        self.config = config
        self.error: EngineDeadError | None = None
        """Why the engine is dead; None while it lives."""
        self._streams: dict[str, _Stream] = {}
        self._calls: dict[int, tuple[Ask[Any], asyncio.Future[Any]]] = {}
        self._call_ids = itertools.count()
        self._hello: asyncio.Future[ipc.Hello] = loop.create_future()
        self._ready: asyncio.Future[ipc.Ready] = loop.create_future()
        self._exited = asyncio.Event()
        self._threads = ThreadPoolExecutor(_TOKENIZER_THREADS, thread_name_prefix="tokenize")
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        ipc.unlimited(self._socket, linger_ms=0)
        self._rendezvous = ipc.Rendezvous.make()
        self._rendezvous.bind(self._socket)
        self._process = EngineProcess(
            self._rendezvous.address,
            factory=factory,
            on_exit=partial(_call_in_loop, loop, self._exited.set),
        )
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._watch())]
        for task in self._tasks:
            task.add_done_callback(self._task_ended)

    @classmethod
    async def start(cls, config: EngineConfig, *, factory: str = ENGINE) -> AsyncEngine:
        """Start the process and load the model.  Raises what loading raised there.

        `factory` names what makes an Engine from a config, as "module:attribute".
        """
        engine = cls(config, factory=factory)
        try:
            await asyncio.gather(engine._load(), engine._load_text())
        except BaseException:
            await engine.close()
            raise
        return engine

    async def _load(self) -> None:
        await asyncio.shield(self._hello)
        self._rendezvous.remove()
        self._send(ipc.Start(self.config))
        self.ready = await asyncio.shield(self._ready)

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
        return self._process.pid

    async def generate(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str = "",
    ) -> AsyncGenerator[RequestOutput, None]:
        """Complete a prompt (text or token ids); yields the growing output as tokens come.

        Closing the generator early aborts the request.  A slow reader skips intermediate states.
        Raises RequestError if the request cannot be served, EngineDeadError if the engine ends.
        """
        request_id = request_id or f"req-{uuid.uuid4().hex}"
        self._check_alive()
        sampling = sampling or SamplingParams()
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
        )
        stream = _Stream([request.request_id for request in requests])
        self._streams[request_id] = stream
        try:
            self._send(ipc.Add(request_id, requests))
            while True:
                await stream.changed.wait()
                stream.changed.clear()
                if (output := stream.output) is not None:
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
        alive, loaded = self.error is None, self._ready.done()
        self._die(EngineDeadError("the engine was closed"))
        if alive:
            self._send(ipc.Close())
        # While loading it does not listen, and there is nothing to save.
        grace_s = 0.0 if alive and not loaded else _STOP_GRACE_S
        await asyncio.to_thread(self._process.stop, grace_s=grace_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._socket.close()
        self._context.term()
        self._rendezvous.remove()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _check_alive(self) -> None:
        if self.error is not None:
            raise _again(self.error)

    def _die(self, error: AllmetalError) -> None:
        """Every open request and call gets `error`; the first one is kept."""
        if self.error is not None:
            return
        for waiting in (self._hello, self._ready):
            if not waiting.done():
                waiting.set_exception(_again(error))
                waiting.exception()  # somebody may have stopped waiting
        if not isinstance(error, EngineDeadError):
            error = EngineDeadError(f"the engine failed: {error.message}", hint=error.hint)
        self.error = error
        for stream in self._streams.values():
            stream.fail(_again(error))
        for call_id in self._calls:
            self._answer(call_id, _again(error))

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            traceback.print_exception(error)
            self._die(ipc.as_error(ipc.failure(error)))

    # ---- messages --------------------------------------------------------------------------

    def _send(self, message: ipc.Message) -> None:
        # There is no limit on what may be queued, so this neither waits nor fails.
        self._socket.send(ipc.encode(message))

    async def _read(self) -> None:
        while True:
            self._handle(ipc.decode_from_engine(await self._socket.recv()))
            # While messages wait, receiving one does not suspend: let the streams have their turn.
            await asyncio.sleep(0)

    async def _watch(self) -> None:
        await self._exited.wait()
        await asyncio.sleep(_LAST_WORDS_S)
        self._die(EngineDeadError(f"the engine process is gone: {self._process.exit_reason()}"))

    def _handle(self, message: ipc.FromEngine) -> None:
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
            case ipc.Hello():
                self._hello.set_result(message)
            case ipc.Ready():
                self._ready.set_result(message)
            case ipc.Failure():
                self._die(ipc.as_error(message))

    def _answer(self, call_id: int, value: msgspec.Raw | AllmetalError) -> None:
        ask, future = self._calls.get(call_id, (None, None))
        if ask is None or future is None or future.done():  # nobody waits any more
            return
        if isinstance(value, AllmetalError):
            future.set_exception(value)
        else:
            future.set_result(msgspec.msgpack.decode(value, type=ask.answer))


def _again(error: AllmetalError) -> AllmetalError:
    """A copy to raise elsewhere: a raised error keeps the traceback of where it was."""
    return ipc.as_error(ipc.failure(error))


def _call_in_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
        loop.call_soon_threadsafe(call)
