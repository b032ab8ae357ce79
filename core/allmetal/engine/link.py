"""Between a front end and an engine: what each may rely on, whoever owns the engine's process."""

from __future__ import annotations

from typing import Protocol

from allmetal.engine import ipc
from allmetal.errors import AllmetalError, EngineDeadError


class FrontEnd(Protocol):
    """Who asks an engine; called in the event loop."""

    def take(self, message: ipc.FromEngine) -> None:
        """What the engine sends once it is loaded."""

    def down(self, error: EngineDeadError) -> None:
        """The engine is gone, and with it all that was asked of it.  Called once a loss, and once
        more with a new error where it was to come back and does not."""

    def up(self, ready: ipc.Ready) -> None:
        """Another engine stands in its place."""


class Link(Protocol):
    """A way to an engine."""

    @property
    def pid(self) -> int:
        """Of the engine's process."""
        ...

    @property
    def lost(self) -> bool:
        """The engine is gone and will not come back."""
        ...

    async def open(self, front: FrontEnd) -> ipc.Ready:
        """Returns when the engine is loaded.  Raises what loading raised."""
        ...

    def send(self, message: ipc.Message) -> None:
        """Neither waits nor fails; to an engine that is gone it does nothing."""

    async def close(self) -> None:
        """Let go.  `front.down` is not called any more.  Closing twice is no error."""


def as_dead(error: AllmetalError) -> EngineDeadError:
    """What ended an engine, for those who had asked something else of it."""
    if isinstance(error, EngineDeadError):
        return error
    return EngineDeadError(f"the engine failed: {error.message}", hint=error.hint)


def again(error: AllmetalError) -> AllmetalError:
    """A copy to raise elsewhere: a raised error keeps the traceback of where it was."""
    return ipc.as_error(ipc.failure(error))
