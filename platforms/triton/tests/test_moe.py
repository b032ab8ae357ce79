from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from allmetal.platform import reference
from allmetal.platform.contract import Supported, Unsupported
from allmetal.platform.specs import DenseWeight, IntWeight, MoESpec, Routing

pytest.importorskip("triton", reason="needs triton")
from allmetal_triton.ops.moe import TritonMoE

SPEC = MoESpec(
    dtype="float16",
    num_experts=8,
    hidden_size=96,
    intermediate_size=72,
    activation="silu",
    routing=Routing(top_k=2),
    gate_up=DenseWeight(dtype="float16"),
    down=DenseWeight(dtype="float16"),
)
SPECS = {
    "plain": SPEC,
    "one": replace(SPEC, routing=Routing(top_k=1, renormalize=False)),
    "all": replace(SPEC, routing=Routing(top_k=8, renormalize=False)),
    "odd": replace(SPEC, num_experts=5, routing=Routing(top_k=3), hidden_size=37),
    "sigmoid": replace(SPEC, routing=Routing(top_k=3, scoring="sigmoid", scale=2.5)),
    "correction": replace(SPEC, routing=Routing(top_k=3, scoring="sigmoid", correction=True)),
    "groups": replace(SPEC, routing=Routing(top_k=2, num_groups=4, top_groups=2)),
    "gelu": replace(SPEC, activation="gelu_tanh"),
}


@pytest.mark.parametrize("num_tokens", [0, 1, 3, 40])
@pytest.mark.parametrize("name", SPECS)
def test_moe_agrees_with_float64(name, num_tokens, generator, target, device) -> None:  # type: ignore[no-untyped-def]
    check(SPECS[name], num_tokens, generator, target, device)


def test_every_dtype_and_tall_tiles_agree_with_float64(  # type: ignore[no-untyped-def]
    dtype, generator, target, device
) -> None:
    dense = DenseWeight(dtype=dtype)
    few = replace(SPEC, dtype=dtype, gate_up=dense, down=dense, num_experts=2, hidden_size=40)
    for num_tokens in (33, 130):  # 33 and 130 pairs an expert
        check(few, num_tokens, generator, target, device)


def check(spec, num_tokens, generator, target, device) -> None:  # type: ignore[no-untyped-def]
    kind, experts = getattr(torch, spec.dtype), spec.num_experts
    hidden, inner = spec.hidden_size, spec.intermediate_size

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    gate_up = (normal(experts, 2 * inner, hidden) / hidden**0.5).to(kind)
    down = (normal(experts, hidden, inner) / inner**0.5).to(kind)
    wide = normal(num_tokens, hidden + 8).to(kind).to(device)
    x = wide[:, :hidden]  # rows of a wider tensor
    logits = normal(num_tokens, experts)
    rest = [normal(experts)] if spec.routing.correction else []
    (kernel,) = reference.kernels()["moe"]
    exact = kernel.build(replace(spec, dtype="float64"))
    packed = exact.pack({"weight": gate_up}, {"weight": down})
    expected = exact(x.cpu().double(), logits, packed, *rest)

    ours = TritonMoE(target)
    assert isinstance(ours.supports(spec), Supported)
    op = ours.build(spec)
    packed = op.pack({"weight": gate_up.to(device)}, {"weight": down.to(device)})
    y = op(x, logits.to(device), packed, *(r.to(device) for r in rest))

    assert y.dtype == kind
    bound = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}[spec.dtype]
    if num_tokens:
        error = (y.double().cpu() - expected).norm(dim=1) / expected.norm(dim=1)
        assert error.max() < bound


def test_logits_that_are_no_numbers_stay_within_the_experts(generator, target, device) -> None:  # type: ignore[no-untyped-def]
    op = TritonMoE(target).build(SPEC)
    weights = (torch.full((8, 144, 96), 0.02), torch.full((8, 96, 72), 0.02))
    packed = op.pack(*({"weight": w.half().to(device)} for w in weights))
    logits = torch.full((2, 8), float("nan"))
    logits[1] = torch.randn(8, generator=generator)
    y = op(torch.ones(2, 96, dtype=torch.float16, device=device), logits.to(device), packed)
    assert y[1].isfinite().all()


def test_a_refusal_says_why(target) -> None:  # type: ignore[no-untyped-def]
    answer = TritonMoE(target).supports(replace(SPEC, down=IntWeight()))
    assert answer == Unsupported("takes dense weights, not int")
    assert isinstance(
        TritonMoE(target).supports(replace(SPEC, routing=Routing(top_k=9))), Unsupported
    )
