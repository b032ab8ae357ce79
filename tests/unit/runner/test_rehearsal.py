"""Steps run without bytes: the same kernels meet the same shapes as they do later."""

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

from allmetal.config import EngineConfig
from allmetal.executor.local import LocalExecutor
from allmetal.platform import reference
from allmetal.platform.contract import AnyKernel, DeviceInfo
from allmetal.platform.select import with_reference

GRAPHS = {"graph_sizes": (1, 3, 4), "graph_tokens": (8, 32)}


class Watched:
    """Calls of linear layers, by device: (tokens, channels)."""

    def __init__(self, kernel: AnyKernel, calls: dict[str, set[tuple[int, ...]]]) -> None:
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
                calls.setdefault(x.device.type, set()).add(tuple(x.shape))
                made: torch.Tensor = op(x, *rest)
                return made

        return Op()


@pytest.fixture
def platform(platform_of: Any, host_device: Any) -> Any:
    """One that compiles ahead, and notes what its linear layers are called with."""
    host_device.graphs = Recorder()
    calls: dict[str, set[tuple[int, ...]]] = {}
    offered = with_reference(OFFERED, reference.kernels())

    class Compiling(platform_of):  # type: ignore[misc]
        def kernels(self, device: DeviceInfo) -> Mapping[str, Sequence[AnyKernel]]:
            linear = [Watched(kernel, calls) for kernel in offered["linear"]]
            return {**offered, "linear": linear}

        def compile_ahead(self, rehearse: Callable[[], None]) -> None:
            self.rehearsed = True
            rehearse()

    made = Compiling(host_device)
    made.calls = calls
    return made


def load(platform: Any, folder: Path, plan: Any) -> LocalExecutor:
    executor = LocalExecutor(EngineConfig(model=str(folder)), plan, platform=platform)
    executor.load()
    return executor


def test_recorded_steps_of_each_magnitude_and_long_prompts_are_rehearsed(
    platform: Any, folder: Path, make_plan: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    plan = replace(make_plan("llama", 97), **GRAPHS)
    executor = load(platform, folder, plan)
    assert platform.rehearsed
    assert not caplog.records
    assert set(platform.calls) == {"meta"}
    rehearsed = {shape[0] for shape in platform.calls["meta"]}
    longest = min(plan.max_num_batched_tokens, plan.max_model_len)
    assert rehearsed == {1, 3, 4, 8, 32, longest - 1, longest}
    executor.close()


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
