"""Every error allmetal raises on purpose.

* AllmetalError
  + ConfigError            settings contradict each other, the model or the machine
    - FallbackError        a feature was asked for, cannot be had, and policy forbids doing without
  + ModelError             a model cannot be served
    - CheckpointError      files are missing, truncated or not what they say
    - UnknownModelError    no model file, plugin or back end for this architecture
  + PlatformError          a platform is absent, broken, or built for another contract
    - NoKernelError        no kernel accepts this problem on this platform
    - GraphError           launches cannot be recorded for replay
  + RequestError           one request is wrong; the engine serves on
    - BusyError            more requests wait than may
    - DrainingError        the engine takes no new requests for now
  + UnavailableError       what is asked for cannot be had here, for the reason given
  + EngineDeadError        the engine is gone; nothing can be served until it is started again

Each carries what happened, why, and where possible a hint: something the reader can type.
"""

from __future__ import annotations

from collections.abc import Iterable


class AllmetalError(Exception):
    """Base of all errors a caller may catch."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class ConfigError(AllmetalError):
    """Settings contradict each other, the model or the machine."""


class FallbackError(ConfigError):
    """A feature was asked for, cannot be had, and policy forbids doing without."""


class ModelError(AllmetalError):
    """A model cannot be served."""


class CheckpointError(ModelError):
    """Checkpoint files are missing, truncated or not what they say."""


class UnknownModelError(ModelError):
    """No model file, plugin or back end serves this architecture."""


class PlatformError(AllmetalError):
    """A platform is absent, broken, or built for another contract."""


class NoKernelError(PlatformError):
    """No kernel accepts a problem; `refused` holds (kernel name, reason) of each that was asked."""

    def __init__(
        self,
        family: str,
        spec: object,
        refused: Iterable[tuple[str, str]],
        *,
        hint: str | None = None,
    ) -> None:
        self.refused = tuple(refused)
        why = "".join(f"\n  {name}: {reason}" for name, reason in self.refused)
        super().__init__(
            f"no {family} kernel accepts {spec}{why or chr(10) + '  (none offered)'}", hint=hint
        )


class GraphError(PlatformError):
    """Launches cannot be recorded for replay."""


class RequestError(AllmetalError):
    """One request is wrong or cannot be served; the engine serves on."""


class BusyError(RequestError):
    """More requests wait than may; the same one may be served later."""


class DrainingError(RequestError):
    """The engine takes no new requests for now: it is to become idle."""


class UnavailableError(AllmetalError):
    """What is asked for cannot be had here; the message is the reason."""


class StepFailedError(AllmetalError):
    """The device failed while it computed a request; the engine serves on."""


class EngineDeadError(AllmetalError):
    """The engine is gone; every open request gets this."""
