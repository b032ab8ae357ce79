"""A platform of the contract before serves through an adapter.

Contract 1 is the first, so the one before is made up: there, capabilities were sentences, an
opened device told its free memory as a number, and nobody passed options.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch

from allmetal import LLM, SamplingParams
from allmetal.platform import adapters, discover
from allmetal.platform.contract import (
    CONTRACT_VERSION,
    DEFAULT_OPTIONS,
    Advice,
    AnyKernel,
    CapabilityTable,
    Device,
    DeviceInfo,
    Emulated,
    Memory,
    ModelFacts,
    Native,
    OpenOptions,
    Platform,
    Probe,
    Unsupported,
)
from allmetal.platform.null import NullDevice

BEFORE = CONTRACT_VERSION - 1


class OldPlatform:
    """As a stranger wrote it for the contract before."""

    name = "old"
    contract_version = BEFORE

    def devices(self) -> list[str]:
        return ["Old One"]

    def start(self, number: int) -> OldDevice:
        return OldDevice()

    def features(self) -> dict[str, str]:
        return {"dtype.float32": "emulated by the reference kernels", "prefix_caching": "native"}


class OldDevice:
    def free(self) -> int:
        return 1 << 28


class FromBefore:
    """The adapter: what the core would bring for as long as contract 0 is taken."""

    contract_version = CONTRACT_VERSION

    def __init__(self, old: OldPlatform) -> None:
        self.name = old.name
        self._old = old

    def probe(self) -> Probe:
        return [
            DeviceInfo(index=index, name=name, total_memory=0, traits={"kind": "host"})
            for index, name in enumerate(self._old.devices())
        ]

    def open(self, device: DeviceInfo, options: OpenOptions = DEFAULT_OPTIONS) -> Device:
        return AdaptedDevice(device, old=self._old.start(device.index))

    def capabilities(self, device: DeviceInfo) -> CapabilityTable:
        return {
            feature: Native("itself") if how == "native" else Emulated(how)
            for feature, how in self._old.features().items()
        }

    def kernels(self, device: DeviceInfo) -> Mapping[str, Sequence[AnyKernel]]:
        return {}


@dataclass(frozen=True, slots=True)
class AdaptedDevice(NullDevice):
    old: OldDevice = field(default_factory=OldDevice)

    def memory(self) -> Memory:
        return Memory(free=self.old.free(), total=self.old.free())

    def advice(self, model: ModelFacts) -> Advice:
        return Advice(kv_memory_fraction=0.5)


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> EntryPoint:
    """Installed, as far as discovery sees."""
    stranger: Any = types.ModuleType("a_platform_from_before")
    stranger.OldPlatform = OldPlatform
    monkeypatch.setitem(sys.modules, stranger.__name__, stranger)
    point = EntryPoint("old", f"{stranger.__name__}:OldPlatform", discover.GROUP)
    monkeypatch.setattr(discover, "entry_points", lambda group: [point])
    return point


def test_without_an_adapter_it_is_refused_and_the_host_does_not_stand_in(
    old: EntryPoint, tiny_llama: Path
) -> None:
    (found,) = discover.discover(only={"old"})
    assert isinstance(found.state, discover.Failed)
    assert found.state.reason == (
        f"it keeps contract {BEFORE}, and this core keeps {CONTRACT_VERSION}: upgrade the plugin"
    )
    with pytest.raises(Exception, match=f"it keeps contract {BEFORE}"):
        LLM(str(tiny_llama))


def test_through_an_adapter_it_serves_the_same_tokens(
    old: EntryPoint, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    prompt, greedy = [5, 17, 80, 3], SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
    monkeypatch.setitem(adapters.ADAPTERS, BEFORE, FromBefore)
    with LLM(str(tiny_llama), platform="old", dtype="float32") as llm:
        assert llm.engine.plan is not None
        assert llm.engine.plan.device.name == "Old One"
        (served,) = llm.generate([prompt], greedy)
    monkeypatch.undo()
    with LLM(str(tiny_llama), platform="cpu", dtype="float32") as llm:
        (expected,) = llm.generate([prompt], greedy)
    assert expected.outputs[0].token_ids == served.outputs[0].token_ids


def test_the_adapters_are_for_the_contract_before_and_no_other() -> None:
    assert set(adapters.ADAPTERS) <= {BEFORE}


def test_an_adapter_is_held_to_the_contract_too() -> None:
    def careless(old: Any) -> Platform:
        half: Any = types.SimpleNamespace(name=old.name, contract_version=CONTRACT_VERSION)
        return half  # type: ignore[no-any-return]

    answer = adapters.adapt(OldPlatform(), {BEFORE: careless})
    assert isinstance(answer, Unsupported)
    assert "has no capabilities, kernels, open, probe" in answer.reason
