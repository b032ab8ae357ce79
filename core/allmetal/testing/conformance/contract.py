"""Level 0: what a platform says of itself, before anything is computed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from allmetal.platform.capabilities import FEATURES
from allmetal.platform.contract import (
    CONTRACT_VERSION,
    REFERENCE_RANK,
    Absent,
    Advice,
    AnyKernel,
    Broken,
    DeviceInfo,
    Emulated,
    Memory,
    ModelFacts,
    Native,
    Platform,
    Supported,
    Unknown,
    Unsupported,
)
from allmetal.platform.specs import FAMILIES
from allmetal.testing.conformance.base import Bench, Conformance
from allmetal.testing.conformance.problems import NATIVE_MEANS, SPECS

MODEL = ModelFacts(
    model_type="llama",
    dtype="bfloat16",
    num_layers=2,
    hidden_size=64,
    head_dim=16,
    vocab_size=1000,
    max_model_len=4096,
    parameter_bytes=1 << 20,
)


_PARTS = {
    "graph_capture": "graphs",
    "collective.all_reduce": "communicator",
    "collective.all_gather": "communicator",
}
"""Feature -> the part of a device that does it."""


class ContractConformance(Conformance):
    """Needs no arithmetic to be right."""

    level = 0

    def test_it_keeps_this_contract(self, platform: Platform) -> None:
        assert platform.contract_version in (CONTRACT_VERSION, CONTRACT_VERSION - 1)
        assert platform.name.isidentifier()

    def test_its_probe_is_quick_repeatable_and_describes_devices(self, platform: Platform) -> None:
        began = time.monotonic()
        first, second = platform.probe(), platform.probe()
        assert time.monotonic() - began < 10
        assert first == second or [d.index for d in _devices(first)] == [
            d.index for d in _devices(second)
        ]
        if isinstance(first, Absent | Broken):
            assert first.reason.strip()
            return
        assert [d.index for d in first] == list(range(len(first)))
        for device in first:
            assert device.name
            assert device.total_memory >= 0
            assert all(isinstance(v, str) for pair in device.traits.items() for v in pair)

    def test_its_capabilities_are_known_features_with_a_word_on_each(
        self, platform: Platform, device_info: DeviceInfo
    ) -> None:
        table = platform.capabilities(device_info)
        assert set(table) <= set(FEATURES), f"unknown: {sorted(set(table) - set(FEATURES))}"
        for feature, answer in table.items():
            assert isinstance(answer, Native | Emulated | Unsupported | Unknown), feature
            match answer:
                case Native(by=word) | Emulated(how=word):
                    assert word.strip(), feature
                case Unsupported(reason=word) | Unknown(reason=word):
                    assert word.strip(), feature

    def test_what_it_calls_native_one_of_its_kernels_takes(
        self, platform: Platform, device_info: DeviceInfo
    ) -> None:
        table, own = platform.capabilities(device_info), platform.kernels(device_info)
        for feature, specs in NATIVE_MEANS.items():
            if isinstance(table.get(feature), Native):
                answers = [
                    (kernel.name, spec, kernel.supports(spec))
                    for spec in specs
                    for kernel in own.get(spec.family, ())
                ]
                taken = any(isinstance(answer, Supported) for _, _, answer in answers)
                assert taken, f"{feature} is called native, but: {answers}"

    def test_what_it_calls_native_its_device_has(self, bench: Bench) -> None:
        table = bench.platform.capabilities(bench.info)
        for feature, part in _PARTS.items():
            if isinstance(table.get(feature), Native):
                there = getattr(bench.device, part) is not None
                assert there, f"{feature} is called native, but the device has no {part}"

    def test_its_kernels_are_named_and_belong_to_known_families(
        self, platform: Platform, device_info: DeviceInfo
    ) -> None:
        for family, offered in platform.kernels(device_info).items():
            assert family in FAMILIES
            names = [kernel.name for kernel in offered]
            assert all(names)
            assert len(set(names)) == len(names), f"{family}: {names}"

    def test_its_kernels_answer_every_spec_and_refuse_with_a_reason(
        self, platform: Platform, device_info: DeviceInfo
    ) -> None:
        for kernel, spec in _questions(platform, device_info):
            answer = kernel.supports(spec)
            assert answer == kernel.supports(spec), f"{kernel.name} changes its mind on {spec}"
            if isinstance(answer, Unsupported):
                assert answer.reason.strip(), f"{kernel.name} refuses {spec} without a reason"
            else:
                assert isinstance(answer, Supported), f"{kernel.name} answers {answer!r}"
                assert 0 <= answer.rank <= REFERENCE_RANK

    def test_its_device_tells_memory_versions_and_advice(self, bench: Bench) -> None:
        device = bench.device
        assert device.info == bench.info
        memory = device.memory()
        assert isinstance(memory, Memory)
        assert 0 <= memory.free <= memory.total
        assert all(isinstance(v, str) for pair in device.versions().items() for v in pair)
        advice = device.advice(MODEL)
        assert isinstance(advice, Advice)
        assert advice.dtype is None or advice.dtype_reason.strip()
        assert 0 < advice.kv_memory_fraction <= 1
        assert min(advice.block_size, advice.max_num_seqs, advice.max_num_batched_tokens) > 0

    def test_no_conformance_test_is_weakened(self) -> None:
        """Overriding one is allowed under xfail with a reason only."""
        assert weakened(type(self)) == []


def weakened(cls: type[Any]) -> list[str]:
    """Names of tests that a subclass replaces without xfail(reason=...)."""
    return sorted(name for name in dir(cls) if name.startswith("test") and _is_weaker(cls, name))


def _is_weaker(cls: type[Any], name: str) -> bool:
    holders = [base for base in cls.__mro__ if name in vars(base)]
    kits = [base for base in holders if base.__module__.startswith(_KIT)]
    if not kits or holders[0] is kits[0]:
        return False
    marks = getattr(vars(holders[0])[name], "pytestmark", [])
    return not any(m.name == "xfail" and m.kwargs.get("reason", "").strip() for m in marks)


_KIT = __name__.rpartition(".")[0]


def _devices(answer: Any) -> list[DeviceInfo]:
    return [] if isinstance(answer, Absent | Broken) else list(answer)


def _questions(platform: Platform, device: DeviceInfo) -> Iterator[tuple[AnyKernel, Any]]:
    own = platform.kernels(device)
    for spec in SPECS:
        for kernel in own.get(spec.family, ()):
            yield kernel, spec
