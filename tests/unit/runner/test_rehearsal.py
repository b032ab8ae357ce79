"""Steps run before they are recorded, so that a platform can compile what they launch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from recordable import OFFERED
from recorder import Recorder

from allmetal.cache.groups import layout_for
from allmetal.config import EngineConfig
from allmetal.executor.local import LocalExecutor
from allmetal.platform import reference
from allmetal.platform.contract import AnyKernel, DeviceInfo
from allmetal.platform.select import with_reference

GRAPHS = {"graph_sizes": (1, 3, 4, 7, 8), "graph_tokens": (8, 32)}


class Watched:
    """Notes the tokens that linear layers are called with."""

    def __init__(self, kernel: AnyKernel, calls: list[int]) -> None:
        self._kernel, self._calls = kernel, calls
        self.name = kernel.name

    def supports(self, spec: Any) -> Any:
        return self._kernel.supports(spec)

    def build(self, spec: Any) -> Any:
        op = self._kernel.build(spec)
        calls = self._calls

        class Op:
            def pack(self, weights: Any) -> Any:
                return op.pack(weights)

            def __call__(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
                calls.append(len(x))
                made: torch.Tensor = op(x, *rest)
                return made

        return Op()


@pytest.fixture
def platform(platform_of: Any, host_device: Any) -> Any:
    """One that compiles ahead; `rehearsed` are the tokens its linear layers were called with."""
    host_device.graphs = Recorder()
    calls: list[int] = []
    offered = with_reference(OFFERED, reference.kernels())

    class Compiling(platform_of):  # type: ignore[misc]
        def kernels(self, device: DeviceInfo) -> Mapping[str, Sequence[AnyKernel]]:
            return {**offered, "linear": [Watched(kernel, calls) for kernel in offered["linear"]]}

        def compile_ahead(self, rehearse: Callable[[], None]) -> None:
            assert not calls
            rehearse()
            self.rehearsed = set(calls)

    return Compiling(host_device)


def load(platform: Any, folder: Path, plan: Any) -> LocalExecutor:
    executor = LocalExecutor(EngineConfig(model=str(folder)), plan, platform=platform)
    loaded = executor.load()
    assert not executor.allocate(layout_for(loaded.kv_specs, plan.block_size, 1 << 20))
    return executor


def test_recorded_steps_of_each_magnitude_and_long_prompts_are_rehearsed(
    platform: Any, folder: Path, make_plan: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    plan = replace(make_plan("llama", 97), max_num_seqs=8, **GRAPHS)
    load(platform, folder, plan).close()
    longest = min(plan.max_num_batched_tokens, plan.max_model_len)
    assert platform.rehearsed == {1, 3, 4, 8, 32, longest - 1, longest}
    assert not caplog.records


def test_without_recorded_steps_long_prompts_are_rehearsed(
    platform: Any, folder: Path, make_plan: Any
) -> None:
    plan = make_plan("llama", 97)
    load(platform, folder, plan).close()
    longest = min(plan.max_num_batched_tokens, plan.max_model_len)
    assert platform.rehearsed == {1, longest - 1, longest}


def test_a_rehearsal_leaves_nothing_behind(
    platform: Any, folder: Path, make_plan: Any, hand: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tokens() -> list[int]:
        plan = replace(make_plan("llama", 97), max_num_seqs=8, **GRAPHS)
        executor = load(platform, folder, plan)
        start = hand.start(0, [5, 17, 80, 3, 9, 9, 41])
        found = executor.execute(hand.plan({0: 7}, start)).result().token_ids
        executor.close()
        return list(found)

    rehearsed = tokens()
    monkeypatch.setattr(platform, "compile_ahead", lambda rehearse: None)
    assert tokens() == rehearsed


def test_what_a_rehearsal_raises_costs_nothing_but_the_rehearsal(
    platform: Any,
    folder: Path,
    make_plan: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(rehearse: Callable[[], None]) -> None:
        raise RuntimeError("no kernel takes tensors without bytes")

    monkeypatch.setattr(platform, "compile_ahead", refuse)
    with caplog.at_level(logging.INFO):
        load(platform, folder, make_plan("llama", 97)).close()
    assert "no kernel takes tensors without bytes" in caplog.text
