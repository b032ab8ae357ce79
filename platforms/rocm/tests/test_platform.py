from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from allmetal.errors import PlatformError
from allmetal.platform.capabilities import FEATURES
from allmetal.platform.contract import DeviceInfo, Emulated, ModelFacts, Native
from allmetal_rocm import RocmPlatform, device
from allmetal_rocm.advice import advise
from allmetal_triton.device.collectives import TorchCollectives

MI300X = DeviceInfo(
    index=0, name="AMD Instinct MI300X", total_memory=192 << 30, arch="gfx942:sramecc+:xnack-"
)
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


@pytest.fixture
def rocm_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch as if built for ROCm, with one GPU, ready to be made worse."""
    monkeypatch.setattr(device, "check_launcher", lambda _: None)

    class Facts:
        gcnArchName = "gfx942:sramecc+:xnack-"
        pci_domain_id, pci_bus_id, pci_device_id = 0, 0x18, 0

    monkeypatch.setattr(torch.version, "hip", "7.1")
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Facts)


@pytest.mark.skipif(torch.version.hip is not None, reason="needs a torch without ROCm")
def test_a_torch_without_rocm_is_named() -> None:
    with pytest.raises(PlatformError, match="was built without ROCm") as error:
        RocmPlatform().open(MI300X)
    assert error.value.hint is not None
    assert "pytorch.org" in error.value.hint


def test_what_torch_says_of_the_driver_is_reported(
    rocm_build: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init() -> None:
        raise RuntimeError("No HIP GPUs are available\nmore")

    monkeypatch.setattr(torch.cuda, "init", init)
    with pytest.raises(PlatformError, match="cannot be used: No HIP GPUs are available"):
        RocmPlatform().open(MI300X)


def test_a_gpu_is_found_by_its_address_and_one_hidden_is_told_apart(rocm_build: None) -> None:
    there = RocmPlatform().open(replace(MI300X, traits={"pci": "0000:18:00.0"}))
    assert there.torch_device == "cuda:0"
    assert there.graphs is not None
    assert there.communicator == TorchCollectives("nccl", "cuda:0")
    with pytest.raises(PlatformError, match=r"0000:2a:00\.0 is hidden") as error:
        RocmPlatform().open(replace(MI300X, traits={"pci": "0000:2a:00.0"}))
    assert "HIP_VISIBLE_DEVICES" in (error.value.hint or "")


def test_an_architecture_without_kernels_is_refused(
    rocm_build: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Facts:
        gcnArchName = "gfx803"

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Facts)
    with pytest.raises(PlatformError, match="is gfx803; there are kernels for gfx90a"):
        RocmPlatform().open(MI300X)


def test_eight_bit_caches_are_told_apart_by_who_widens_them() -> None:
    platform = RocmPlatform()

    def answer(arch: str) -> object:
        return platform.capabilities(replace(MI300X, arch=arch))["kv_dtype.float8_e4m3fn"]

    for arch, how in (("gfx942:sramecc+:xnack-", "half"), ("gfx950", "triton_attention")):
        native = answer(arch)
        assert isinstance(native, Native)
        assert how in native.by
    for arch in ("gfx90a", "gfx1100", "gfx1201", ""):
        assert isinstance(answer(arch), Emulated)


def test_every_capability_is_a_known_feature() -> None:
    assert set(RocmPlatform().capabilities(MI300X)) <= set(FEATURES)


def test_advice_keeps_half_precision_and_narrows_the_rest() -> None:
    assert advise(MI300X, MODEL).dtype == "bfloat16"
    assert advise(MI300X, replace(MODEL, dtype="float32")).dtype_reason
    small = advise(replace(MI300X, total_memory=16 << 30), MODEL)
    assert small.max_num_seqs == max(small.graph_sizes) == 128


def test_the_engine_generates_the_references_tokens_with_interpreted_kernels() -> None:
    pytest.importorskip("triton", reason="needs triton")
    program = Path(__file__).parents[2] / "triton/tests/interpreted.py"
    env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(program), "allmetal_rocm", "RocmPlatform", "gfx942"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"dense": ["", ""], "window-and-full": ["", ""]}
