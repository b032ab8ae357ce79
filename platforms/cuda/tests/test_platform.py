from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch

from allmetal.errors import PlatformError
from allmetal.platform.capabilities import FEATURES
from allmetal.platform.contract import DeviceInfo, ModelFacts, Native, Supported, Unsupported
from allmetal.platform.specs import DenseWeight, IntWeight, LinearSpec
from allmetal_cuda import CudaPlatform, device
from allmetal_cuda.advice import advise, graph_sizes
from allmetal_cuda.ops.linear import CublasLinear
from allmetal_triton.device.launcher import check_launcher

H200 = DeviceInfo(index=0, name="NVIDIA H200", total_memory=141 << 30, arch="sm_90")
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
def cuda_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch as if built with CUDA, with one GPU, ready to be made worse."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(device, "check_launcher", lambda _: None)


def test_a_torch_without_cuda_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)

    with pytest.raises(PlatformError, match="was built without CUDA") as error:
        CudaPlatform().open(H200)

    assert error.value.hint is not None
    assert "pytorch.org" in error.value.hint


def test_an_old_driver_is_reported_in_torchs_words(
    cuda_build: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found 11040).\nmore")

    monkeypatch.setattr(torch.cuda, "init", init)

    with pytest.raises(PlatformError, match="driver on your system is too old") as error:
        CudaPlatform().open(H200)

    assert error.value.hint is not None
    assert "CUDA 13.0" in error.value.hint
    assert "more" not in error.value.message


def test_a_gpu_too_old_for_the_kernels_is_refused(
    cuda_build: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))

    with pytest.raises(PlatformError, match=r"capability 7\.5; the kernels need 8\.0"):
        CudaPlatform().open(replace(H200, name="Tesla T4"))


def test_a_gpu_that_torch_may_not_see_is_told_apart(
    cuda_build: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Facts:
        pci_domain_id, pci_bus_id, pci_device_id = 0, 0x18, 0

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Facts)
    there = CudaPlatform().open(replace(H200, traits={"pci": "0000:18:00.0"}))
    assert there.torch_device == "cuda:0"

    with pytest.raises(PlatformError, match=r"0000:2a:00\.0 is hidden") as error:
        CudaPlatform().open(replace(H200, traits={"pci": "0000:2a:00.0"}))

    assert error.value.hint == "CUDA_VISIBLE_DEVICES leaves it out"


def test_a_triton_that_finds_no_compiler_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="needs triton")

    class Unbuilt:
        @property
        def utils(self) -> object:
            raise RuntimeError("Failed to find C compiler. Please specify via CC")

    monkeypatch.setattr("triton.runtime.driver._active", Unbuilt())

    with pytest.raises(PlatformError, match=r"cannot build .*: Failed to find C compiler") as error:
        check_launcher("NVIDIA H200")

    assert error.value.hint is not None
    assert "gcc" in error.value.hint


def test_without_triton_there_are_no_kernels_and_the_error_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)

    with pytest.raises(PlatformError, match="written in Triton") as error:
        CudaPlatform().kernels(H200)

    assert error.value.hint == "pip install triton"


def test_every_capability_is_a_known_feature() -> None:
    assert set(CudaPlatform().capabilities(H200)) <= set(FEATURES)


def test_eight_bit_caches_need_the_instructions() -> None:
    platform = CudaPlatform()
    answers = [
        platform.capabilities(replace(H200, arch=arch))["kv_dtype.float8_e4m3fn"]
        for arch in ("sm_90", "sm_80")
    ]
    assert isinstance(answers[0], Native)
    assert isinstance(answers[1], Unsupported)


def test_advice_keeps_half_precision_and_narrows_the_rest() -> None:
    assert advise(H200, MODEL).dtype == "bfloat16"
    assert advise(H200, replace(MODEL, dtype="float16")).dtype == "float16"
    narrowed = advise(H200, replace(MODEL, dtype="float32"))
    assert narrowed.dtype == "bfloat16"
    assert "float32" in narrowed.dtype_reason


def test_recorded_sizes_leave_little_padding() -> None:
    sizes = graph_sizes(256)
    assert sizes[0] == 1
    assert sizes[-1] == 256
    for size in range(9, 257):
        padded = next(s for s in sizes if s >= size)
        assert padded - size < max(8, size // 8 + 1)


def test_a_large_card_runs_more_sequences_at_once() -> None:
    sizes = {40: 256, 79: 1024, 141: 1024}
    for gib, most in sizes.items():
        advice = advise(replace(H200, total_memory=gib << 30), MODEL)
        assert advice.max_num_seqs == most == max(advice.graph_sizes)


def test_cublas_takes_dense_weights_of_the_models_dtype() -> None:
    spec = LinearSpec(
        dtype="bfloat16",
        in_features=8,
        out_features=4,
        bias=True,
        weight=DenseWeight(dtype="bfloat16"),
    )
    kernel = CublasLinear()
    assert isinstance(kernel.supports(spec), Supported)
    for refused in (
        replace(spec, weight=IntWeight()),
        replace(spec, weight=DenseWeight(dtype="float32")),
        replace(spec, dtype="float64", weight=DenseWeight(dtype="float64")),
    ):
        answer = kernel.supports(refused)
        assert isinstance(answer, Unsupported)
        assert answer.reason
    op = kernel.build(spec)
    weight, x, bias = torch.randn(4, 8), torch.randn(3, 8), torch.randn(4)
    y = op(x, op.pack({"weight": weight}), bias)
    torch.testing.assert_close(y, x @ weight.T + bias)
