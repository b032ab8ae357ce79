"""What a front end may ask of an engine between two steps, and what each is answered with.

One typed form for all: `await engine.call(Pause())` is an `EngineState`, `call(AskStats())` an
`EngineStats`.  A new ask is a class here and a case in `engine.answers`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

import msgspec

from allmetal.engine.engine import EngineStats

A = TypeVar("A")


class Ask(msgspec.Struct, Generic[A], tag=True, array_like=True, frozen=True):
    """Base of all: `A` is what it is answered with, and `answer` says so to the decoder."""

    answer: ClassVar[Any]


class EngineState(msgspec.Struct, frozen=True, kw_only=True):
    """`sleep_level` 0: awake; 1: the cache is given back; 2: the weights too.  `freed_bytes`: of
    the device's memory by the ask that this answers."""

    paused: bool
    sleep_level: int
    num_running: int
    num_waiting: int
    draining: bool = False
    freed_bytes: int = 0


class AskStats(Ask[EngineStats], frozen=True):
    answer = EngineStats


class AskState(Ask[EngineState], frozen=True):
    answer = EngineState


class Pause(Ask[EngineState], frozen=True):
    """Let what runs go on, and what waits or comes wait."""

    answer = EngineState


class Resume(Ask[EngineState], frozen=True):
    """End a pause or a drain.  Raises RequestError of an engine that sleeps."""

    answer = EngineState


class Drain(Ask[EngineState], frozen=True):
    """Refuse what comes, with DrainingError; what runs or waits goes on.  Resume ends it."""

    answer = EngineState


class Sleep(Ask[EngineState], frozen=True):
    """Give device memory back: at level 1 the cache, at 2 the weights too.

    What runs is put back to wait, and goes on after `Wake` with the same tokens.  Raises
    UnavailableError with the executor's reason.
    """

    level: int
    answer = EngineState


class Wake(Ask[EngineState], frozen=True):
    """Take the memory again and resume.  Of an engine that is awake this is no error."""

    answer = EngineState


class ResetPrefixCache(Ask[EngineState], frozen=True):
    """No block that was written until now is found again."""

    answer = EngineState


class AbortRequests(Ask[int], frozen=True):
    """End the sequences of a request, None: of all; answers how many.  Their streams end with the
    finish reason "abort"."""

    request_id: str | None
    answer = int


AnyAsk: TypeAlias = (
    AskStats | AskState | Pause | Resume | Drain | Sleep | Wake | ResetPrefixCache | AbortRequests
)
