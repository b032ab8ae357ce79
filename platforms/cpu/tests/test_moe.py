from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from allmetal.platform import reference
from allmetal.platform.specs import DenseWeight, GGUFWeight, IntWeight, MoESpec, Routing
from allmetal.quant.ggml import BLOCKS

DENSE, ROUTING = DenseWeight(dtype="bfloat16"), Routing(top_k=3)
GROUPED = Routing(
    top_k=2, scoring="sigmoid", correction=True, num_groups=4, top_groups=2, scale=2.5
)


@pytest.mark.parametrize("num_tokens", [0, 1, 2, 19, 150])
@pytest.mark.parametrize(
    ("gate_up", "down", "routing"),
    [
        (DENSE, DENSE, ROUTING),
        (DENSE, DENSE, GROUPED),
        (IntWeight(), IntWeight(), replace(ROUTING, renormalize=False)),
        (IntWeight(bits=4, group_size=32), IntWeight(act_dtype="int8"), ROUTING),
        (GGUFWeight(type="Q4_K"), GGUFWeight(type="Q8_0"), GROUPED),
    ],
    ids=["dense", "groups", "int8", "int4-w8a8", "ggml"],
)
def test_experts_agree_with_float64(  # type: ignore[no-untyped-def]
    gate_up, down, routing, num_tokens, generator, accepting
) -> None:
    """Few experts and many, so that threads share each product, and take an expert each."""
    spec = MoESpec(
        dtype="bfloat16",
        num_experts=16,
        hidden_size=256,
        intermediate_size=160,
        activation="silu",
        routing=routing,
        gate_up=gate_up,
        down=down,
    )
    weights = [stored(w, n, c, generator) for w, n, c in ((gate_up, 320, 256), (down, 256, 160))]
    x = torch.randn(num_tokens, 256, generator=generator).bfloat16()
    logits = torch.randn(num_tokens, 16, generator=generator)
    rest = [torch.randn(16, generator=generator)] if routing.correction else []
    (kernel,) = reference.kernels()["moe"]
    exact = kernel.build(replace(spec, dtype="float64"))
    expected = exact(x.double(), logits.double(), exact.pack(*weights), *(r.double() for r in rest))
    kernels = accepting(spec)
    assert kernels
    for kernel in kernels:
        op = kernel.build(spec)
        y = op(x, logits, op.pack(*weights), *rest).double()
        assert y.shape == x.shape
        error = (y - expected).norm(dim=1) / expected.norm(dim=1)
        assert (error < 0.04).all(), kernel.name


def test_a_token_that_is_not_finite_spoils_no_other(generator, accepting) -> None:  # type: ignore[no-untyped-def]
    spec = MoESpec(
        dtype="bfloat16",
        num_experts=8,
        hidden_size=64,
        intermediate_size=32,
        activation="silu",
        routing=ROUTING,
        gate_up=DENSE,
        down=DENSE,
    )
    weights = [stored(DENSE, n, c, generator) for n, c in ((64, 64), (64, 32))]
    x = torch.randn(5, 64, generator=generator).bfloat16()
    logits = torch.randn(5, 8, generator=generator)
    x[2, 3], logits[2, 5] = float("nan"), float("nan")
    for kernel in accepting(spec):
        op = kernel.build(spec)
        y = op(x, logits, op.pack(*weights))
        assert y[[0, 1, 3, 4]].isfinite().all()
        assert not y[2].isfinite().any()


def stored(  # type: ignore[no-untyped-def]
    weight, rows: int, channels: int, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """Of 16 experts, or 8 where they are dense and small."""
    experts = 8 if channels <= 64 else 16
    shape = (experts, rows, channels)
    if isinstance(weight, DenseWeight):
        return {"weight": torch.randn(shape, generator=generator).bfloat16()}
    if isinstance(weight, IntWeight):
        limit = 2 ** (weight.bits - 1)
        values = torch.randint(1 - limit, limit, shape, generator=generator, dtype=torch.int8)
        groups = channels // weight.group_size if weight.group_size else 1
        scale = torch.rand(experts, rows, groups, generator=generator) * 0.01 + 0.001
        return {"weight": values, "scale": scale}
    block = BLOCKS[weight.type]
    raw = torch.randint(
        0, 256, (experts, rows, channels // block.elements, block.nbytes), generator=generator
    ).to(torch.uint8)
    # Gates of about one: far below zero, SiLU would make of a gate's error one of all its output.
    scale = 0.0001 if weight.type == "Q4_K" else 0.0123
    for at in (0, 2) if weight.type == "Q4_K" else (0,):
        raw[..., at : at + 2] = torch.tensor([scale], dtype=torch.float16).view(torch.uint8)
    return {"weight": raw.flatten(2)}
