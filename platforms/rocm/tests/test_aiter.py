"""aiter as a provider: asked only where it is, and loud where it fails.  What it computes, and
whether it takes our calls, is tested in `vendor`."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from allmetal.errors import PlatformError
from allmetal.platform.contract import DeviceInfo, Supported, Unsupported
from allmetal.platform.specs import RMSNormSpec

pytest.importorskip("triton", reason="needs triton")
from allmetal_rocm.aiter import package
from allmetal_rocm.aiter.rms_norm import AiterRMSNorm
from allmetal_rocm.kernels import kernels

SPEC = RMSNormSpec(dtype="bfloat16", dim=64, eps=1e-6)


@pytest.fixture
def aiter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A package with aiter's folders, whose functions a test fills in."""
    (tmp_path / "aiter/ops/triton").mkdir(parents=True)
    (tmp_path / "aiter/__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [n for n in sys.modules if n.partition(".")[0] == "aiter"]:
        monkeypatch.delitem(sys.modules, name)
    import aiter

    module: ModuleType = aiter
    return module


def answer(arch: str = "gfx942", dtype: str = "bfloat16") -> str | None:
    return package.refuse(arch, dtype)


@pytest.mark.skipif(package.installed(), reason="needs an environment without amd-aiter")
def test_without_the_package_it_is_refused_and_tritons_kernels_remain() -> None:
    assert answer() == "the package amd-aiter is not installed"
    offered = kernels(DeviceInfo(index=0, name="", total_memory=0, arch="gfx942"))["rms_norm"]
    kept = [k.name for k in offered if isinstance(k.supports(SPEC), Supported)]
    assert kept == ["triton_rms_norm"]


def test_another_package_of_that_name_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "aiter").mkdir()
    (tmp_path / "aiter/__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "aiter", raising=False)
    assert not package.installed()


def test_with_the_package_the_architecture_and_dtype_decide(aiter: ModuleType) -> None:
    assert answer() is None
    assert "not gfx1100" in (answer("gfx1100") or "")
    assert "not float32" in (answer(dtype="float32") or "")
    assert AiterRMSNorm("gfx950").supports(SPEC) == Supported(rank=5)
    assert isinstance(AiterRMSNorm("gfx90a").supports(SPEC), Unsupported)


def test_what_ends_the_process_when_a_kernel_cannot_be_built_becomes_an_error(
    aiter: ModuleType,
) -> None:
    def unbuildable(*_: object) -> None:
        raise SystemExit("hipcc: command not found\n[aiter] failed to build module_rmsnorm")

    aiter.rmsnorm2d_fwd = aiter.rmsnorm2d_fwd_with_add = unbuildable  # type: ignore[attr-defined]
    op = AiterRMSNorm("gfx942").build(SPEC)
    with pytest.raises(PlatformError, match="failed to build module_rmsnorm") as error:
        op(torch.ones(2, 64), torch.ones(64))
    assert "--kernel" in (error.value.hint or "")


def test_an_interruption_stays_one(aiter: ModuleType) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    aiter.rmsnorm2d_fwd = aiter.rmsnorm2d_fwd_with_add = interrupted  # type: ignore[attr-defined]
    op = AiterRMSNorm("gfx942").build(SPEC)
    with pytest.raises(KeyboardInterrupt):
        op(torch.ones(2, 64), torch.ones(64))


def test_a_package_that_cannot_be_imported_says_so_when_a_kernel_is_built(
    aiter: ModuleType,
) -> None:
    with pytest.raises(PlatformError, match="aiter is installed and cannot be used"):
        AiterRMSNorm("gfx942").build(SPEC)
