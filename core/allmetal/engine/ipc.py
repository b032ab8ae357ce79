"""What crosses between a server's process and the engine's: msgpack messages over one socket.

The process that started the engine and the engine hold a ZeroMQ DEALER each; where the engine is
shared it has a ROUTER besides, which more front ends join.  Where the system has them a socket is a
file in a private folder, which goes as soon as both ends are connected, or with the engine where it
is shared; elsewhere it is a port of the loopback interface.
"""

from __future__ import annotations

import shutil
import tempfile
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import zmq

from allmetal import errors
from allmetal.config import EngineConfig, LogFormat
from allmetal.engine.asks import AnyAsk
from allmetal.errors import AllmetalError, EngineDeadError, NoKernelError
from allmetal.platform.plan import Plan
from allmetal.request import Request, TokenDelta

# The longest path the kernel takes for a socket is 107 bytes; leave room for the file's name.
_LONGEST_FOLDER = 90


class Message(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Base of all messages."""


class Start(Message, frozen=True):
    """To the engine, first: load this.

    `shared`: let other front ends join.  `log_format`: how its log lines look; None: as Python's.
    """

    config: EngineConfig
    shared: bool = False
    log_format: LogFormat | None = None


class Add(Message, frozen=True):
    """The sequences of one caller's request: all of them are taken or none."""

    request_id: str
    requests: list[Request]


class Abort(Message, frozen=True):
    request_ids: list[str]


class Call(Message, frozen=True):
    """Do this between two steps, and answer with `Answer` or `Refused`."""

    call_id: int
    ask: AnyAsk


class Leave(Message, frozen=True):
    """That front end, by its name, is gone: end what it asked for."""

    front: str


class Close(Message, frozen=True):
    """Drop what is running and exit."""


class Hello(Message, frozen=True):
    """From the engine, first: it runs and is connected."""

    pid: int


class Ready(Message, frozen=True):
    """Loaded.  Sizes are bytes; `num_blocks` cache blocks of `block_size` tokens.

    Other front ends join at `address`; "": none can.
    """

    plan: Plan
    max_model_len: int
    vocab_size: int
    num_blocks: int
    block_size: int
    weight_bytes: int
    address: str = ""


class Failure(Message, frozen=True):
    """An error as it crosses: its class by name where it is one of ours."""

    kind: str
    message: str
    hint: str | None = None
    refused: list[tuple[str, str]] = []


class Rejected(Message, frozen=True):
    request_id: str
    failure: Failure


class Step(Message, frozen=True):
    deltas: list[TokenDelta]


class Answer(Message, frozen=True):
    """`value` is what the ask names as its answer, packed."""

    call_id: int
    value: msgspec.Raw


class Refused(Message, frozen=True):
    call_id: int
    failure: Failure


ToEngine: TypeAlias = Start | Add | Abort | Call | Leave | Close
FromEngine: TypeAlias = Hello | Ready | Failure | Rejected | Step | Answer | Refused


def _encode_other(value: object) -> object:
    if isinstance(value, Mapping):  # read-only views of a config's dicts
        return dict(value)
    raise NotImplementedError(f"{type(value).__name__} does not cross processes")


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_other)
encode = _encoder.encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode


def failure(error: BaseException) -> Failure:
    """`error` as a message."""
    if isinstance(error, AllmetalError):
        refused = list(error.refused) if isinstance(error, NoKernelError) else []
        return Failure(type(error).__name__, error.message, error.hint, refused)
    return Failure("", "".join(traceback.format_exception_only(error)).strip())


def as_error(sent: Failure) -> AllmetalError:
    """The error that was sent: same class, message and hint; EngineDeadError if it is not ours."""
    kind = getattr(errors, sent.kind, None) if sent.kind else None
    if not (isinstance(kind, type) and issubclass(kind, AllmetalError)):
        return EngineDeadError(
            f"the engine failed: {sent.message}", hint="its traceback is on standard error"
        )
    error = kind.__new__(kind)
    AllmetalError.__init__(error, sent.message, hint=sent.hint)
    if isinstance(error, NoKernelError):
        error.refused = tuple(sent.refused)
    return error


@dataclass(slots=True, kw_only=True)
class Rendezvous:
    """Where the two processes meet."""

    address: str

    @classmethod
    def make(cls) -> Rendezvous:
        if zmq.has("ipc"):
            folder = Path(tempfile.mkdtemp(prefix="allmetal-"))
            if len(str(folder).encode()) <= _LONGEST_FOLDER:
                return cls(address=f"ipc://{folder}/engine")
            folder.rmdir()
        return cls(address="tcp://127.0.0.1:*")

    def bind(self, socket: zmq.Socket[Any]) -> None:
        """Listen, and note the port where one was left to the system."""
        socket.bind(self.address)
        self.address = socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def remove(self) -> None:
        """Drop the folder.  A connection that stands is not disturbed."""
        remove_folder(self.address)


def remove_folder(address: str) -> None:
    """Drop the folder an address lies in, if it is one of a file."""
    if address.startswith("ipc://"):
        shutil.rmtree(Path(address.removeprefix("ipc://")).parent, ignore_errors=True)


def unlimited(socket: zmq.Socket[Any], *, linger_ms: int) -> None:
    """No message is dropped or waits for room; closing waits `linger_ms` for what is unsent."""
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.LINGER, linger_ms)
