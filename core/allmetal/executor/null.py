"""An executor that does everything but compute: for timing and testing all that is above it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from allmetal.executor.contract import LoadedModel, StepOutput, StepPlan
from allmetal.platform.kv import CacheLayout
from allmetal.platform.plan import Decision


@dataclass(frozen=True, slots=True)
class DoneStep:
    """A step whose result is there."""

    output: StepOutput

    def result(self) -> StepOutput:
        return self.output

    def done(self) -> bool:
        return True


class NullExecutor:
    """Answers each step at once.  `token(step, row)` says what row of a step samples."""

    def __init__(
        self, loaded: LoadedModel, token: Callable[[StepPlan, int], int] = lambda step, row: 7
    ) -> None:
        self._loaded = loaded
        self._token = token
        self.layout: CacheLayout | None = None

    def load(self) -> LoadedModel:
        return self._loaded

    def allocate(self, layout: CacheLayout) -> Sequence[Decision]:
        self.layout = layout
        return ()

    def execute(self, step: StepPlan) -> DoneStep:
        rows = [row for row, samples in enumerate(step.samples) if samples]
        tokens = [self._token(step, row) for row in rows]
        return DoneStep(StepOutput(step_id=step.step_id, token_ids=tokens))

    def close(self) -> None:
        self.layout = None
