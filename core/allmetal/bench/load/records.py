"""What is asked, and what was seen of the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

PromptText: TypeAlias = str | Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request to make.  `at`: seconds after the beginning, where a trace says."""

    prompt: PromptText
    output_len: int
    at: float | None = None


@dataclass(slots=True, kw_only=True)
class Record:
    """One request that was made.  Times are seconds on the clock of `time.perf_counter`.

    `scheduled` is when it should have been sent: latencies count from there, so that waiting for
    a server that cannot keep up is not left out.  `pieces`: when each piece of the stream came.
    """

    scheduled: float
    sent: float = 0.0
    pieces: list[float] = field(default_factory=list)
    num_input: int = 0
    num_output: int = 0
    num_asked: int = 0
    counted: bool = True
    """Whether the server counted the output's tokens; else pieces were."""
    error: str | None = None
    reused: bool = False
    """Whether the last attempt went over a connection that had served others."""

    @property
    def ttft(self) -> float:
        return self.pieces[0] - self.scheduled

    @property
    def e2e(self) -> float:
        return self.pieces[-1] - self.scheduled

    @property
    def tpot(self) -> float | None:
        """Seconds a token after the first; None where there is no other."""
        if self.num_output < 2:
            return None
        return (self.pieces[-1] - self.pieces[0]) / (self.num_output - 1)

    @property
    def gaps(self) -> list[float]:
        """Between each piece and the next."""
        return [b - a for a, b in zip(self.pieces, self.pieces[1:], strict=False)]
