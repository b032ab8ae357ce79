"""aiter's compiled kernels: what stands in for them is called through the package's own layers,
which check our arguments against its schemas, and sees them as the kernels would."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import standin_rocm
import torch

from allmetal.errors import PlatformError
from allmetal.platform import reference
from allmetal.platform.contract import DeviceInfo, Supported
from allmetal.platform.specs import DenseWeight, MoESpec, RMSNormSpec, Routing
from allmetal_rocm.aiter.moe import AiterMoE
from allmetal_rocm.aiter.rms_norm import AiterRMSNorm
from allmetal_rocm.kernels import target
from allmetal_triton.interpreter import mend

HERE = target(DeviceInfo(index=0, name="", total_memory=0, arch="gfx942"))


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    mend()
    with standin_rocm.device():
        yield


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float, rounds_first: int = 0) -> torch.Tensor:
    normal = torch.nn.functional.rms_norm(x.float(), x.shape[1:], eps=eps)
    normal = normal.to(x.dtype).float() if rounds_first else normal
    return (normal * weight.float()).to(x.dtype)


def add_and_norm(
    out: torch.Tensor,
    x: torch.Tensor,
    residual_in: torch.Tensor,
    residual_out: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    rounds_first: int = 0,
) -> None:
    residual_out.copy_(x + residual_in)
    out.copy_(norm(residual_out, weight, eps, rounds_first))


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module that aiter would have compiled for norms.  The dispatcher leaves out what is the
    schema's own default."""
    from aiter.jit import core  # type: ignore[import-not-found]

    module = ModuleType("module_rmsnorm")
    for name, function in {"rmsnorm2d_fwd": norm, "rmsnorm2d_fwd_with_add": add_and_norm}.items():
        function.__doc__ = "Members: not of an extension, whose docstring has its signature"
        setattr(module, name, function)
    monkeypatch.setattr(core, "get_module", {"module_rmsnorm": module}.__getitem__)


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("rounds_first", [False, True])
def test_norms_pass_aiters_schemas(built: None, residual: bool, rounds_first: bool) -> None:
    spec = RMSNormSpec(
        dtype="bfloat16", dim=64, eps=1e-5, residual=residual, cast_before_weight=rounds_first
    )
    kernel = AiterRMSNorm("gfx942")
    assert isinstance(kernel.supports(spec), Supported)
    wide = torch.randn(5, 128).bfloat16()
    x, weight = wide[:, :64], torch.randn(64).bfloat16()
    rest = [torch.randn(5, 64).bfloat16()] if residual else []
    (exact,) = reference.kernels()["rms_norm"]
    expected = exact.build(spec)(x, weight, *rest)

    y, s = kernel.build(spec)(x, weight, *rest)

    assert torch.allclose(y.float(), expected[0].float(), atol=0.02, rtol=0.01)
    assert torch.equal(s, expected[1])


def test_a_kernel_that_cannot_be_built_is_an_error_and_not_the_end_of_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The real package, on a machine without ROCm's compiler."""
    op = AiterRMSNorm("gfx942").build(RMSNormSpec(dtype="bfloat16", dim=64, eps=1e-5))
    with pytest.raises(PlatformError, match="rmsnorm2d_fwd cannot be built"):
        op(torch.ones(2, 64).bfloat16(), torch.ones(64).bfloat16())


def test_experts_pass_aiters_schema_and_their_weights_are_laid_out_by_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As far as the sort, the first that is compiled: its arguments are what we gave."""
    dense = DenseWeight(dtype="float16")
    spec = MoESpec(
        dtype="float16",
        num_experts=4,
        hidden_size=128,
        intermediate_size=128,
        activation="silu",
        routing=Routing(top_k=2),
        gate_up=dense,
        down=dense,
    )
    kernel = AiterMoE("gfx942", HERE)
    assert isinstance(kernel.supports(spec), Supported)
    op = kernel.build(spec)
    gate_up, down = torch.randn(4, 256, 128).half(), torch.randn(4, 128, 128).half()
    packed: Any = op.pack({"weight": gate_up}, {"weight": down})
    assert [w.shape for w in packed] == [gate_up.shape, down.shape]
    assert torch.equal(packed[0][0].flatten().sort().values, gate_up[0].flatten().sort().values)
    seen: list[tuple[Any, ...]] = []

    import aiter

    def sort(*args: Any) -> None:
        seen.append(args)
        raise RuntimeError("seen")

    monkeypatch.setattr(aiter, "moe_sorting_fwd", sort)
    logits = torch.randn(3, 4)
    with pytest.raises(PlatformError, match="seen"):
        op(torch.randn(3, 128).half(), logits, packed)

    ids, shares = seen[0][:2]
    expected = logits.softmax(-1).topk(2)
    assert (ids.dtype, shares.dtype) == (torch.int32, torch.float32)
    assert torch.equal(ids.long(), expected.indices)
    assert torch.allclose(shares, expected.values / expected.values.sum(-1, keepdim=True))
    assert seen[0][7] == spec.num_experts


def _signature(call: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(call).parameters)


def test_fused_experts_have_the_parameters_that_we_name() -> None:
    from aiter.fused_moe import fused_moe  # type: ignore[import-not-found]

    names = _signature(fused_moe)
    assert names[:5] == ["hidden_states", "w1", "w2", "topk_weight", "topk_ids"]
    assert {"activation", "quant_type"} <= set(names)
