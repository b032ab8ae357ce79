"""Engines that start at once, for the process that a front end starts: real but for the computing.

Each function is a factory, named to `AsyncEngine.start(config, factory="stand_ins:slow")`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from allmetal.config import EngineConfig
from allmetal.engine.engine import Engine
from allmetal.engine.limits import Limits
from allmetal.errors import CheckpointError, NoKernelError
from allmetal.executor.contract import LoadedModel, StepPlan
from allmetal.executor.null import NullExecutor
from allmetal.platform.contract import DeviceInfo, ModelFacts
from allmetal.platform.kv import KVSpec
from allmetal.platform.plan import Decision, Plan

VOCAB_SIZE = 400
LETTER_A = 37  # of the tiny tokenizer


def engine(token: Callable[[StepPlan, int], int]) -> Engine:
    spec = KVSpec(kind="full", num_kv_heads=1, head_dim=8, dtype="float32")
    loaded = LoadedModel(kv_specs=(spec,), kv_bytes=1 << 20, weight_bytes=1, vocab_size=VOCAB_SIZE)
    limits = Limits(max_model_len=512, max_num_seqs=8, max_num_batched_tokens=64, block_size=8)
    return Engine(NullExecutor(loaded, token), limits, _plan())


def _plan() -> Plan:
    return Plan(
        platform="null",
        device=DeviceInfo(index=0, name="nothing", total_memory=0, traits={"kind": "stand-in"}),
        model=ModelFacts(
            model_type="llama",
            dtype="float32",
            num_layers=1,
            hidden_size=8,
            head_dim=8,
            vocab_size=VOCAB_SIZE,
            max_model_len=512,
            parameter_bytes=1,
        ),
        dtype="float32",
        kv_dtype="float32",
        quantization=None,
        block_size=8,
        max_model_len=512,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        kv_cache_memory=None,
        memory_fraction=0.5,
        prefix_caching=True,
        async_scheduling=True,
        graph_sizes=(),
        decisions=(Decision(feature="platform", asked="auto", got="null", by="default"),),
    )


def letter(step: StepPlan, row: int) -> int:
    """Token t of a sequence is letter number t, so that text shows what was lost or doubled."""
    return LETTER_A + (step.num_computed[row] + step.num_scheduled[row]) % 20


def counting(config: EngineConfig) -> Engine:
    return engine(letter)


def slow(config: EngineConfig) -> Engine:
    """Twenty milliseconds a token."""

    def token(step: StepPlan, row: int) -> int:
        time.sleep(0.02)
        return letter(step, row)

    return engine(token)


def crashes(config: EngineConfig) -> Engine:
    """Its loop fails in the fifth step."""

    def token(step: StepPlan, row: int) -> int:
        if step.step_id >= 4:
            raise ZeroDivisionError("a bug in the loop")
        return LETTER_A

    return engine(token)


def hangs(config: EngineConfig) -> Engine:
    def token(step: StepPlan, row: int) -> int:
        time.sleep(600)
        return LETTER_A

    return engine(token)


def broken_checkpoint(config: EngineConfig) -> Engine:
    raise CheckpointError("shard 2 is cut short", hint="download it again")


def no_kernel(config: EngineConfig) -> Engine:
    raise NoKernelError("attention", "AttentionSpec(x)", [("fast", "too wide")], hint="narrow it")


def bug_while_loading(config: EngineConfig) -> Engine:
    return [][1]


def dies_while_loading(config: EngineConfig) -> Engine:
    os._exit(7)


def never_ready(config: EngineConfig) -> Engine:
    time.sleep(600)
    raise AssertionError


def loads_once(config: EngineConfig) -> Engine:
    """Not again while the file is there that `config.revision` names."""
    marker = Path(config.revision or "")
    if marker.exists():
        raise CheckpointError("the checkpoint is gone")
    marker.touch()
    return slow(config)
