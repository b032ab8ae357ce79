"""One rank in this process.

On a device that works on after a call returns, steps are launched where the engine calls, and a
result waits for an event.  On one that does not, a thread of the rank's own runs them in order,
so that the engine schedules the next step meanwhile.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from allmetal.config import EngineConfig
from allmetal.errors import ConfigError
from allmetal.executor.contract import LoadedModel, StepFuture, StepOutput, StepPlan, TokenMasks
from allmetal.platform.contract import Device, Platform, Unsupported
from allmetal.platform.kv import CacheLayout
from allmetal.platform.plan import Decision, Plan
from allmetal.platform.resolve import platform_named
from allmetal.runner.model_runner import LaunchedStep, ModelRunner
from allmetal.runner.pooling import LaunchedPooling, PoolingRunner
from allmetal.runner.rank import Rank, build_rank, open_device

T = TypeVar("T")


class _Launched:
    """A step on its way on an asynchronous device."""

    __slots__ = ("_output", "_step")

    def __init__(self, step: LaunchedStep | LaunchedPooling) -> None:
        self._step = step
        self._output: StepOutput | None = None

    def done(self) -> bool:
        return self._output is not None or self._step.done()

    def result(self) -> StepOutput:
        if self._output is None:
            self._output = self._step.collect()
        return self._output


class _Finished:
    """A step that ended in the call that started it, well or not."""

    __slots__ = ("_outcome",)

    def __init__(self, outcome: StepOutput | Exception) -> None:
        self._outcome = outcome

    def done(self) -> bool:
        return True

    def result(self) -> StepOutput:
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome


class _Held:
    """A step that has been executed but for the choice of its tokens."""

    __slots__ = ("_choose", "_chosen")

    def __init__(self, choose: Callable[[TokenMasks | None], StepFuture]) -> None:
        self._choose = choose
        self._chosen: StepFuture | None = None

    def mask(self, masks: TokenMasks | None) -> StepFuture:
        if self._chosen is None:
            self._chosen = self._choose(masks)
        return self._chosen

    def done(self) -> bool:
        return self._chosen is not None and self._chosen.done()

    def result(self) -> StepOutput:
        return self.mask(None).result()


class LocalExecutor:
    """Loads and runs `plan` on its device.  Methods are called by one thread."""

    def __init__(
        self,
        config: EngineConfig,
        plan: Plan,
        *,
        platform: Platform | None = None,
        progress: bool = False,
    ) -> None:
        if plan.tensor_parallel_size > 1:
            raise ConfigError(
                f"the core runs a model on one device, not on {plan.tensor_parallel_size}",
                hint="--tensor-parallel-size 1, or a platform with an executor of its own",
            )
        self._config = config
        self._plan = plan
        self._platform = platform
        self._progress = progress
        self._device: Device | None = None
        self._rank: Rank | None = None
        self._worker: ThreadPoolExecutor | None = None
        self._held: _Held | None = None

    def load(self) -> LoadedModel:
        device = self._device = open_device(self._config, self._plan, self._served_platform)
        if not device.asynchronous and self._plan.async_scheduling:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="allmetal-rank")
        self._rank = self._run(self._build)
        return self._rank.loaded

    def allocate(self, layout: CacheLayout) -> Sequence[Decision]:
        runner = self._runner
        return self._run(lambda: runner.allocate(layout))

    def execute(self, step: StepPlan) -> StepFuture:
        """Never raises what the step raises; its future does."""
        runner, worker = self._runner, self._worker
        if step.masked:
            self._held = self._hold(step)
            return self._held
        if worker is not None:
            return worker.submit(runner.execute, step)
        return _settled(lambda: runner.launch(step))

    def mask(self, masks: TokenMasks) -> None:
        """See `TakesMasks`."""
        assert self._held is not None, "a masked step comes first"
        self._held.mask(masks)
        self._held = None

    def _hold(self, step: StepPlan) -> _Held:
        runner, worker = self._runner, self._worker
        assert isinstance(runner, ModelRunner), "only tokens are chosen within masks"
        if worker is not None:
            forward = worker.submit(runner.forward, step)
            return _Held(
                lambda masks: worker.submit(
                    lambda: runner.choose(forward.result(), masks).collect()
                )
            )
        try:
            forwarded = runner.forward(step)
        except Exception as exc:
            failed = _Finished(exc)
            return _Held(lambda _: failed)
        return _Held(lambda masks: _settled(lambda: runner.choose(forwarded, masks)))

    def release(self, *, weights: bool) -> int | Unsupported:
        """See `GivesMemoryBack`."""
        device = self._opened
        device.synchronize()
        before = device.memory().free
        if weights:
            self._rank = None
        elif self._rank is not None:
            self._run(self._rank.runner.release)
        gc.collect()  # modules and hooks refer to each other
        if device.asynchronous and torch.accelerator.is_available():
            torch.accelerator.empty_cache()
        return max(0, device.memory().free - before)

    def restore(self, layout: CacheLayout) -> None:
        if self._rank is None:
            self._rank = self._run(self._build)
        self.allocate(layout)

    def close(self) -> None:
        """Let the steps given end, then give everything back.  May be called again."""
        if self._worker is not None:
            self._worker.shutdown()
            self._worker = None
        self._rank = None
        if self._device is not None:
            self._device.close()
            self._device = None

    def _build(self) -> Rank:
        return build_rank(
            self._config,
            self._plan,
            self._served_platform,
            self._opened,
            progress=self._progress,
        )

    @property
    def _served_platform(self) -> Platform:
        return self._platform or platform_named(self._plan.platform)

    @property
    def _opened(self) -> Device:
        assert self._device is not None, "load() comes first"
        return self._device

    @property
    def _runner(self) -> ModelRunner | PoolingRunner:
        assert self._rank is not None, "load() comes first"
        return self._rank.runner

    def _run(self, work: Callable[[], T]) -> T:
        """Do it in the rank's thread, where steps will run, if it has one."""
        return work() if self._worker is None else self._worker.submit(work).result()


def _settled(launch: Callable[[], LaunchedStep | LaunchedPooling]) -> StepFuture:
    """What came of it, well or not, or what is on its way."""
    try:
        launched = launch()
        return _Finished(launched.collect()) if launched.done() else _Launched(launched)
    except Exception as exc:  # the engine decides what to do about it
        return _Finished(exc)
