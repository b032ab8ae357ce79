"""What the supervisor says to a worker, through a pipe: a length, then a message in msgpack."""

from __future__ import annotations

from typing import BinaryIO, TypeAlias

import msgspec

from allmetal.config import EngineConfig, ServerConfig
from allmetal.engine import ipc
from allmetal.engine.ipc import Failure, Message, Ready


class Begin(Message, frozen=True):
    """First: serve this on the socket of that number, under a name of your own."""

    name: str
    engine: EngineConfig
    server: ServerConfig
    listener: int


class Up(Message, frozen=True):
    """The engine is there; `pid` is its process."""

    ready: Ready
    pid: int


class Down(Message, frozen=True):
    """The engine is gone; `lost`: for good."""

    failure: Failure
    lost: bool


class Drain(Message, frozen=True):
    """Let open requests end, then exit."""


class Stop(Message, frozen=True):
    """Exit now."""


Order: TypeAlias = Begin | Up | Down | Drain | Stop
_decode = msgspec.msgpack.Decoder(Order).decode
_LENGTH_BYTES = 4


def frame(order: Order) -> bytes:
    body = ipc.encode(order)
    return len(body).to_bytes(_LENGTH_BYTES, "little") + body


def read(pipe: BinaryIO) -> Order | None:
    """The next one; None when the supervisor is gone."""
    head = pipe.read(_LENGTH_BYTES)
    if len(head) < _LENGTH_BYTES:
        return None
    length = int.from_bytes(head, "little")
    body = pipe.read(length)
    return _decode(body) if len(body) == length else None
