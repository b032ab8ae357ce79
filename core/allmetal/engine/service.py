"""The engine's process, from inside: an `Engine` behind a socket."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from functools import reduce
from importlib import import_module

import msgspec
import zmq

from allmetal.engine import ipc
from allmetal.engine.answers import answer
from allmetal.engine.asks import AnyAsk
from allmetal.engine.engine import Engine
from allmetal.errors import AllmetalError, RequestError
from allmetal.request import Request, TokenDelta


def main(address: str, factory: str) -> None:
    """Connect, load, serve until told to stop.  The whole life of the process."""
    _exit_with_parent(address)
    # The parent decides when to stop: signals to the whole group must not cut its shutdown short.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    ipc.unlimited(socket, linger_ms=1000)
    socket.connect(address)
    code = 0
    try:
        _serve(socket, factory)
    except Exception as error:
        code = 1
        if not isinstance(error, AllmetalError):  # a bug: those who mend it want to see where
            traceback.print_exc()
        socket.send(ipc.encode(ipc.failure(error)))
    socket.close()
    context.term()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not every library that was loaded ends its threads; nothing of value is left to unwind.
    os._exit(code)


def _serve(socket: zmq.Socket[bytes], factory: str) -> None:
    socket.send(ipc.encode(ipc.Hello(os.getpid())))
    start = ipc.decode_to_engine(socket.recv())
    if not isinstance(start, ipc.Start):
        return
    module, _, path = factory.partition(":")
    make = reduce(getattr, path.split("."), import_module(module))
    engine: Engine = make(start.config)  # type: ignore[operator]
    try:
        socket.send(ipc.encode(_ready(engine)))
        _loop(socket, engine)
    finally:
        engine.close()


def _ready(engine: Engine) -> ipc.Ready:
    assert engine.plan is not None
    return ipc.Ready(
        plan=engine.plan,
        max_model_len=engine.max_model_len,
        vocab_size=engine.loaded.vocab_size,
        num_blocks=engine.layout.num_blocks,
        block_size=engine.layout.block_size,
        weight_bytes=engine.loaded.weight_bytes,
    )


def _loop(socket: zmq.Socket[bytes], engine: Engine) -> None:
    while True:
        for message in _received(socket, wait=not engine.has_work):
            if isinstance(message, ipc.Close):
                return
            _handle(socket, engine, message)
        if engine.has_work and (deltas := engine.step()):
            socket.send(ipc.encode(ipc.Step(deltas)))


def _received(socket: zmq.Socket[bytes], *, wait: bool) -> Iterator[ipc.ToEngine]:
    """Every message that has come; with `wait`, at least one."""
    flags = 0 if wait else zmq.NOBLOCK
    while True:
        try:
            yield ipc.decode_to_engine(socket.recv(flags))
        except zmq.Again:
            return
        flags = zmq.NOBLOCK


def _handle(socket: zmq.Socket[bytes], engine: Engine, message: ipc.ToEngine) -> None:
    match message:
        case ipc.Add(request_id, requests):
            _add(socket, engine, request_id, requests)
        case ipc.Abort(request_ids):
            socket.send(ipc.encode(ipc.Step(engine.abort(request_ids))))
        case ipc.Call(call_id, ask):
            _answer(socket, engine, call_id, ask)


def _add(
    socket: zmq.Socket[bytes], engine: Engine, request_id: str, requests: list[Request]
) -> None:
    added: list[str] = []
    try:
        for request in requests:
            engine.add(request)
            added.append(request.request_id)
    except RequestError as error:
        engine.abort(added)
        socket.send(ipc.encode(ipc.Rejected(request_id, ipc.failure(error))))


def _answer(socket: zmq.Socket[bytes], engine: Engine, call_id: int, ask: AnyAsk) -> None:
    deltas: list[TokenDelta] = []
    try:
        value = msgspec.Raw(ipc.encode(answer(engine, ask, deltas)))
        reply: ipc.Message = ipc.Answer(call_id, value)
    except AllmetalError as error:
        reply = ipc.Refused(call_id, ipc.failure(error))
    if deltas:  # first: who hears that all were ended has their ends then
        socket.send(ipc.encode(ipc.Step(deltas)))
    socket.send(ipc.encode(reply))


def _exit_with_parent(address: str) -> None:
    """End this process when the pipe from its parent closes."""

    def wait() -> None:
        sys.stdin.buffer.read()
        ipc.remove_folder(address)
        os._exit(3)

    threading.Thread(target=wait, name="parent-watch", daemon=True).start()
