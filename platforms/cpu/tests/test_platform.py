from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from allmetal.platform.capabilities import FEATURES
from allmetal.platform.contract import (
    DeviceInfo,
    Emulated,
    Memory,
    ModelFacts,
    Native,
    OpenOptions,
)
from allmetal.testing.machine import write_files
from allmetal_cpu import CpuPlatform
from allmetal_cpu.advice import MAX_KV_MEMORY, advise
from allmetal_cpu.probe import probe

GIB = 1 << 30
MODEL = ModelFacts(
    model_type="any",
    dtype="bfloat16",
    num_layers=1,
    hidden_size=8,
    head_dim=8,
    vocab_size=8,
    max_model_len=8,
    parameter_bytes=2 * GIB,
)


def host(isa: str) -> DeviceInfo:
    return DeviceInfo(index=0, name="CPU", total_memory=0, traits={"isa": isa, "cores": "2"})


@pytest.fixture
def keep_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_the_probe_names_the_cpu_and_its_instruction_sets(tmp_path: Path) -> None:
    cpu = "processor: 0\nmodel name\t: Some CPU\nflags\t\t: fpu avx2 avx512_bf16 lm\n\n"
    write_files(tmp_path, {"proc/cpuinfo": cpu + "processor: 1\nmodel name: Other\n"})
    device = probe(tmp_path, frozenset({0, 1, 2}))
    assert device.name == "Some CPU"
    assert device.traits["isa"] == "avx2 avx512_bf16"
    assert device.traits["cores"] == "3"
    assert device.traits["kind"] == "host"


def test_the_probe_reads_arm_features(tmp_path: Path) -> None:
    write_files(tmp_path, {"proc/cpuinfo": "processor: 0\nFeatures : fp asimd bf16 i8mm\n"})
    assert probe(tmp_path, frozenset({0})).traits["isa"] == "asimd bf16 i8mm"


def test_an_empty_machine_is_still_a_device(tmp_path: Path) -> None:
    device = probe(tmp_path, frozenset({0}))
    assert device.name
    assert device.traits["isa"] == ""


@pytest.mark.usefixtures("keep_threads")
def test_this_machine_opens() -> None:
    platform = CpuPlatform()
    (info,) = platform.probe()  # type: ignore[misc]
    device = platform.open(info)
    assert torch.get_num_threads() == int(info.traits["cores"])
    memory = device.memory()
    assert 0 < memory.free <= memory.total
    assert memory.total <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert device.advice(MODEL).dtype in ("float32", "bfloat16")
    device.synchronize()
    device.close()


@pytest.mark.usefixtures("keep_threads")
def test_threads_are_set_as_asked() -> None:
    platform = CpuPlatform()
    (info,) = platform.probe()  # type: ignore[misc]
    device = platform.open(info, OpenOptions(threads=1))
    assert torch.get_num_threads() == 1
    assert device.versions()["threads"] == "1"


def test_every_feature_has_an_answer_with_a_reason() -> None:
    platform = CpuPlatform()
    (info,) = platform.probe()  # type: ignore[misc]
    table = platform.capabilities(info)
    assert set(table) <= set(FEATURES)
    for answer in table.values():
        match answer:
            case Native(by):
                assert by
            case Emulated(how):
                assert how
            case other:
                assert other.reason


@pytest.mark.parametrize(
    ("isa", "asked", "dtype"),
    [
        ("avx512_bf16", "bfloat16", "bfloat16"),
        ("avx512_bf16", "float16", "bfloat16"),
        ("avx512_bf16", "float32", "float32"),
        ("avx2", "bfloat16", "float32"),
        ("avx2", "float16", "float32"),
        ("bf16", "bfloat16", "bfloat16"),
    ],
)
def test_the_dtype_follows_the_instruction_set(isa: str, asked: str, dtype: str) -> None:
    from dataclasses import replace

    answer = advise(host(isa), replace(MODEL, dtype=asked), Memory(free=GIB, total=GIB))
    assert answer.dtype == dtype
    assert answer.dtype_reason


def test_the_cache_leaves_a_large_host_its_memory() -> None:
    large = advise(host(""), MODEL, Memory(free=1000 * GIB, total=1000 * GIB))
    assert large.kv_memory_fraction * 1000 * GIB <= 1.1 * (MODEL.parameter_bytes + MAX_KV_MEMORY)
    small = advise(host(""), MODEL, Memory(free=4 * GIB, total=8 * GIB))
    assert small.kv_memory_fraction < 0.8
