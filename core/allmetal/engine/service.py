"""The engine's process, from inside: an `Engine` behind a socket."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from functools import reduce
from importlib import import_module

import msgspec
import zmq

from allmetal import logs
from allmetal.engine import ipc
from allmetal.engine.answers import answer
from allmetal.engine.asks import AnyAsk
from allmetal.engine.engine import Engine
from allmetal.engine.fronts import PARENT, Fronts
from allmetal.errors import AllmetalError, RequestError
from allmetal.request import Request, TokenDelta


def main(address: str, factory: str) -> None:
    """Connect, load, serve until told to stop.  The whole life of the process."""
    folders = [address]
    _exit_with_parent(folders)
    # The parent decides when to stop: signals to the whole group must not cut its shutdown short.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    context = zmq.Context()
    fronts = Fronts(context, address)
    code = 0
    try:
        _serve(fronts, factory, folders)
    except Exception as error:
        code = 1
        if not isinstance(error, AllmetalError):  # a bug: those who mend it want to see where
            traceback.print_exc()
        fronts.send(PARENT, ipc.failure(error))
    fronts.close()
    context.term()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not every library that was loaded ends its threads; nothing of value is left to unwind.
    os._exit(code)


def _serve(fronts: Fronts, factory: str, folders: list[str]) -> None:
    fronts.send(PARENT, ipc.Hello(os.getpid()))
    start = fronts.first()
    if not isinstance(start, ipc.Start):
        return
    if start.log_format is not None:
        logs.configure(start.log_format)
    module, _, path = factory.partition(":")
    make = reduce(getattr, path.split("."), import_module(module))
    engine: Engine = make(start.config)  # type: ignore[operator]
    address = ""
    try:
        if start.shared:
            address = fronts.share()
            folders.append(address)
        fronts.send(PARENT, _ready(engine, address))
        _loop(fronts, engine)
    finally:
        ipc.remove_folder(address)
        engine.close()


def _ready(engine: Engine, address: str) -> ipc.Ready:
    assert engine.plan is not None
    return ipc.Ready(
        plan=engine.plan,
        max_model_len=engine.max_model_len,
        vocab_size=engine.loaded.vocab_size,
        num_blocks=engine.layout.num_blocks,
        block_size=engine.layout.block_size,
        weight_bytes=engine.loaded.weight_bytes,
        address=address,
    )


def _loop(fronts: Fronts, engine: Engine) -> None:
    while True:
        for front, message in fronts.received(wait=not engine.has_work):
            if isinstance(message, ipc.Close):
                return
            _handle(fronts, engine, front, message)
        if engine.has_work and (deltas := engine.step()):
            fronts.spread(deltas)


def _handle(fronts: Fronts, engine: Engine, front: bytes, message: ipc.ToEngine) -> None:
    match message:
        case ipc.Add(request_id, requests):
            _add(fronts, engine, front, request_id, requests)
        case ipc.Abort(request_ids):
            fronts.spread(engine.abort(request_ids))
        case ipc.Call(call_id, ask):
            _answer(fronts, engine, front, call_id, ask)
        case ipc.Leave(name):
            engine.abort(fronts.leave(name))


def _add(
    fronts: Fronts, engine: Engine, front: bytes, request_id: str, requests: list[Request]
) -> None:
    added: list[Request] = []
    try:
        for request in requests:
            engine.add(request)
            added.append(request)
    except RequestError as error:
        engine.abort([request.request_id for request in added])
        fronts.send(front, ipc.Rejected(request_id, ipc.failure(error)))
    else:
        fronts.own(front, added)


def _answer(fronts: Fronts, engine: Engine, front: bytes, call_id: int, ask: AnyAsk) -> None:
    deltas: list[TokenDelta] = []
    try:
        value = msgspec.Raw(ipc.encode(answer(engine, ask, deltas)))
        reply: ipc.Message = ipc.Answer(call_id, value)
    except AllmetalError as error:
        reply = ipc.Refused(call_id, ipc.failure(error))
    if deltas:  # first: who hears that all were ended has their ends then
        fronts.spread(deltas)
    fronts.send(front, reply)


def _exit_with_parent(folders: list[str]) -> None:
    """End this process when the pipe from its parent closes."""

    def wait() -> None:
        sys.stdin.buffer.read()
        for address in folders:
            ipc.remove_folder(address)
        os._exit(3)

    threading.Thread(target=wait, name="parent-watch", daemon=True).start()
