"""An executor of MLX's own: models and cache are MLX's, and the core's runner does the rest.

The core's runner keeps the sequences' state, builds inputs, edits logits and samples, all on host
memory, which is MLX's memory too.  A step crosses between the two libraries twice: integers in,
logits out.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from allmetal.checkpoint import open_checkpoint
from allmetal.config import EngineConfig
from allmetal.executor.contract import LoadedModel, StepFuture, StepPlan
from allmetal.platform import reference
from allmetal.platform.kv import CacheLayout
from allmetal.platform.plan import Decision, Plan
from allmetal.platform.select import Kernels
from allmetal.runner.model_runner import ModelRunner
from allmetal.runner.rank import kv_bytes
from allmetal.runner.weights import dummy_readers, weight_readers
from allmetal_mlx.causal_lm import MlxCausalLM
from allmetal_mlx.device import MlxDevice


@cache
def _thread() -> ThreadPoolExecutor:
    """The one that talks to MLX, of all executors: MLX keeps a queue and a thread of its own for
    every thread it has met, and never gives them back."""
    return ThreadPoolExecutor(1, thread_name_prefix="allmetal-mlx")


class MlxExecutor:
    """Loads and steps in the thread above, in the order they are given."""

    def __init__(self, config: EngineConfig, plan: Plan) -> None:
        self._config, self._plan = config, plan
        self._device = MlxDevice(plan.device)
        self._runner: ModelRunner | None = None

    def load(self) -> LoadedModel:
        return _thread().submit(self._load).result()

    def _load(self) -> LoadedModel:
        plan = self._plan
        before = self._device.memory().free
        checkpoint = open_checkpoint(self._config)
        try:
            model = MlxCausalLM(checkpoint.config, plan)
            if checkpoint.format == "dummy":
                model.load_weights(dummy_readers(model.weight_shapes, dtype=plan.dtype))
            else:
                model.load_weights(weight_readers(checkpoint))
        finally:
            checkpoint.close()
        self._runner = ModelRunner(plan, self._device, model, Kernels(reference.kernels()))
        now = self._device.memory().free
        weights = max(before - now, plan.model.parameter_bytes)
        return LoadedModel(
            kv_specs=model.kv_specs,
            kv_bytes=kv_bytes(plan, before, weights, now),
            weight_bytes=weights,
            vocab_size=model.vocab_size,
        )

    def allocate(self, layout: CacheLayout) -> Sequence[Decision]:
        runner = self._ready
        return _thread().submit(runner.allocate, layout).result()

    def execute(self, step: StepPlan) -> StepFuture:
        return _thread().submit(self._ready.execute, step)

    def close(self) -> None:
        """Let the steps given end, then give everything back."""
        self._runner = None
        _thread().submit(self._device.close).result()

    @property
    def _ready(self) -> ModelRunner:
        assert self._runner is not None, "load() comes first"
        return self._runner
