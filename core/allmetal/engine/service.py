"""The engine's process, from inside: an `Engine` behind a socket."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import reduce
from importlib import import_module
from typing import Any, Protocol

import zmq

from allmetal.engine import ipc
from allmetal.errors import RequestError
from allmetal.platform.plan import Plan
from allmetal.request import Request, TokenDelta


class ServedEngine(Protocol):
    """What the service needs of an engine."""

    @property
    def plan(self) -> Plan: ...
    @property
    def has_work(self) -> bool: ...
    def add(self, request: Request) -> None: ...
    def abort(self, request_ids: Sequence[str]) -> object: ...
    def step(self) -> list[TokenDelta]: ...
    def stats(self) -> Any: ...
    def close(self) -> None: ...


def main(address: str, factory: str) -> None:
    """Connect, load, serve until told to stop.  The whole life of the process."""
    _exit_with_parent()
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
    engine: ServedEngine = make(start.config)  # type: ignore[operator]
    try:
        socket.send(ipc.encode(ipc.Ready(engine.plan, asdict(engine.stats()))))
        _loop(socket, engine)
    finally:
        engine.close()


def _loop(socket: zmq.Socket[bytes], engine: ServedEngine) -> None:
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


def _handle(socket: zmq.Socket[bytes], engine: ServedEngine, message: ipc.ToEngine) -> None:
    match message:
        case ipc.Add(requests):
            _add(socket, engine, requests)
        case ipc.Abort(request_ids):
            engine.abort(request_ids)
        case ipc.AskStats(call_id):
            socket.send(ipc.encode(ipc.Stats(call_id, asdict(engine.stats()))))


def _add(socket: zmq.Socket[bytes], engine: ServedEngine, requests: list[Request]) -> None:
    """All of one caller's sequences or none."""
    added: list[str] = []
    try:
        for request in requests:
            engine.add(request)
            added.append(request.request_id)
    except RequestError as error:
        engine.abort(added)
        ids = [request.request_id for request in requests]
        socket.send(ipc.encode(ipc.Rejected(ids, ipc.failure(error))))


def _exit_with_parent() -> None:
    """End this process when the pipe from its parent closes."""

    def wait() -> None:
        sys.stdin.buffer.read()
        os._exit(3)

    threading.Thread(target=wait, name="parent-watch", daemon=True).start()
