"""A machine where the C++ library could not be built, or is not the one this code wants."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from allmetal.platform.contract import DeviceInfo, Emulated, Supported, Unsupported
from allmetal.platform.specs import DenseWeight, LinearSpec, RMSNormSpec
from allmetal_cpu import CpuPlatform
from allmetal_cpu.native import find, library
from allmetal_cpu.ops.linear import OneDNNLinear

SPEC = LinearSpec(
    dtype="float32",
    in_features=8,
    out_features=8,
    bias=False,
    weight=DenseWeight(dtype="float32"),
)


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The package's folder is another, in which nothing was built."""
    import allmetal_cpu
    import allmetal_cpu.kernels  # while it is found

    monkeypatch.setattr(allmetal_cpu, "__path__", [str(tmp_path)])
    library.load.cache_clear()
    yield tmp_path
    library.load.cache_clear()


def this_host() -> tuple[CpuPlatform, DeviceInfo]:
    platform = CpuPlatform()
    (device,) = platform.probe()  # type: ignore[misc]
    return platform, device


@pytest.mark.usefixtures("no_library")
def test_native_kernels_say_that_nothing_was_built_and_torch_takes_over() -> None:
    platform, device = this_host()
    native, *others = platform.kernels(device)["linear"]
    answer = native.supports(SPEC)
    assert isinstance(answer, Unsupported)
    assert "not built" in answer.reason
    assert any(isinstance(kernel.supports(SPEC), Supported) for kernel in others)
    norms = platform.kernels(device)["rms_norm"]
    spec = RMSNormSpec(dtype="float32", dim=8, eps=1e-6)
    assert [isinstance(kernel.supports(spec), Supported) for kernel in norms] == [False, True]


@pytest.mark.usefixtures("no_library")
def test_capabilities_follow_what_was_built() -> None:
    platform, device = this_host()
    table = platform.capabilities(device)
    assert isinstance(table["quant.gguf"], Emulated)
    assert isinstance(table["graph_capture"], Unsupported)
    assert platform.open(device).graphs is None


@pytest.mark.usefixtures("no_library")
def test_the_device_opens_and_reports_it() -> None:
    platform, device = this_host()
    assert "not built" in platform.open(device).versions()["native library"]


def test_a_file_that_is_no_library_is_refused_with_the_loaders_words(no_library: Path) -> None:
    (no_library / "liballmetal_cpu.so").write_bytes(b"\x7fELF nonsense")
    answer = library.load()
    assert isinstance(answer, Unsupported)
    assert "native library not loaded" in answer.reason


def test_a_library_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    path = find.find()
    assert isinstance(path, Path)
    monkeypatch.setattr(library, "VERSION", library.VERSION + 1)
    answer = library.open_library(path)
    assert isinstance(answer, Unsupported)
    assert "reinstall allmetal-cpu" in answer.reason


def test_the_library_outranks_torch_where_both_can() -> None:
    platform, device = this_host()
    native = platform.kernels(device)["linear"][0].supports(SPEC)
    onednn = OneDNNLinear().supports(SPEC)
    assert isinstance(native, Supported)
    assert isinstance(onednn, Supported)
    assert native.rank < onednn.rank
