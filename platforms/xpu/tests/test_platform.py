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
from allmetal.platform.contract import DeviceInfo, ModelFacts, Native, Unsupported
from allmetal_triton.device.collectives import TorchCollectives
from allmetal_xpu import XpuPlatform, device
from allmetal_xpu.advice import advise

MAX1550 = DeviceInfo(
    index=0, name="Intel GPU 0bd5", total_memory=64 << 30, driver="xe", traits={"integrated": "no"}
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
def xpu_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch as if built for XPU, with one GPU, ready to be made worse."""
    monkeypatch.setattr(device, "check_launcher", lambda _: None)

    class Facts:
        driver_version = "1.6.33578"

    monkeypatch.setattr(torch.xpu, "_is_compiled", lambda: True)
    monkeypatch.setattr(torch.xpu, "init", lambda: None)
    monkeypatch.setattr(torch.xpu, "device_count", lambda: 1)
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda _: Facts)


@pytest.mark.skipif(torch.xpu._is_compiled(), reason="needs a torch without XPU")
def test_a_torch_without_xpu_is_named() -> None:
    with pytest.raises(PlatformError, match="was built without XPU") as error:
        XpuPlatform().open(MAX1550)
    assert error.value.hint is not None
    assert "pytorch.org" in error.value.hint


def test_what_torch_says_of_the_driver_is_reported(
    xpu_build: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init() -> None:
        raise RuntimeError("No XPU devices are available.\nmore")

    monkeypatch.setattr(torch.xpu, "init", init)
    with pytest.raises(PlatformError, match=r"cannot be used: No XPU devices are available\."):
        XpuPlatform().open(MAX1550)


def test_a_gpu_opens_and_one_hidden_is_told_apart(xpu_build: None) -> None:
    there = XpuPlatform().open(MAX1550)
    assert there.torch_device == "xpu:0"
    assert there.communicator == TorchCollectives("xccl", "xpu:0")
    with pytest.raises(PlatformError, match="torch sees 1 Intel GPUs") as error:
        XpuPlatform().open(replace(MAX1550, index=1))
    assert "ZE_AFFINITY_MASK" in (error.value.hint or "")


def test_every_capability_is_a_known_feature() -> None:
    found = XpuPlatform().capabilities(MAX1550)
    assert set(found) <= set(FEATURES)
    assert isinstance(found["moe"], Native)
    assert isinstance(found["kv_dtype.float8_e5m2"], Unsupported)


def test_a_gpu_inside_the_processor_leaves_memory_to_others() -> None:
    inside = replace(MAX1550, traits={"integrated": "yes"})
    assert advise(inside, MODEL).kv_memory_fraction < advise(MAX1550, MODEL).kv_memory_fraction
    assert advise(inside, replace(MODEL, dtype="float32")).dtype == "bfloat16"


def test_the_engine_generates_the_references_tokens_with_interpreted_kernels() -> None:
    pytest.importorskip("triton", reason="needs triton")
    program = Path(__file__).parents[2] / "triton/tests/interpreted.py"
    env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(program), "allmetal_xpu", "XpuPlatform", ""]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"dense": ["", ""], "window-and-full": ["", ""]}
