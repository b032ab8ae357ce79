"""The platform's Pallas kernels, interpreted, against the reference kernels.

Between torch and JAX numbers are carried through the host's memory, in place of TorchTPU's
`jax_op`, whose calls only a TPU's runtime answers; `test_bridge.py` looks at that one.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from carrying import carry

from allmetal.platform.contract import Unsupported
from allmetal.platform.reference import attention as reference_attention
from allmetal.platform.reference import attention_input as reference_input
from allmetal.platform.reference import linear as reference_linear
from allmetal.platform.reference import moe as reference_moe
from allmetal.platform.specs import (
    AttentionInputSpec,
    AttentionSpec,
    DenseWeight,
    Float8Weight,
    IntWeight,
    LinearSpec,
    MoESpec,
    Routing,
    WeightFormat,
)
from allmetal.testing.batches import paged_batch
from allmetal_tpu.pallas import kernels

KERNELS = kernels("v5e", interpret=True)
SPEC = AttentionSpec(
    dtype="float32",
    kv_dtype="float32",
    num_heads=4,
    num_kv_heads=2,
    head_dim=128,
    block_size=16,
    scale=128**-0.5,
)


@pytest.fixture(autouse=True)
def through_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    carry(monkeypatch)


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    got, want = got.double(), want.double()
    return float((got - want).norm() / want.norm())


@pytest.mark.parametrize(
    ("spec", "new"),
    [
        (SPEC, [1, 20, 1]),
        (replace(SPEC, head_dim=64, sinks=True, window=30), [1, 1, 1]),
        (replace(SPEC, head_dim=80, soft_cap=5.0), [1, 1, 1]),
    ],
    ids=["mixed", "side by side", "padded"],
)
def test_attention_and_its_cache_write_agree_with_the_reference(
    spec: AttentionSpec, new: list[int]
) -> None:
    generator = torch.Generator()
    print("seed", generator.seed())
    paged = paged_batch(new, [40, 90, 17], spec.block_size, generator=generator)
    (kernel,) = KERNELS["attention"]
    op, plain = kernel.build(spec), reference_attention.KERNEL.build(spec)
    sinks = torch.randn(spec.num_heads, generator=generator) if spec.sinks else None
    heads = spec.num_heads + 2 * spec.num_kv_heads
    length = len(paged.history)
    qkv = torch.randn(length, heads * spec.head_dim, generator=generator)
    wanted = AttentionInputSpec(
        dtype=spec.dtype,
        kv_dtype=spec.kv_dtype,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        block_size=spec.block_size,
        kv_layout="nhd",
        rotary_dim=0,
    )
    cache = torch.zeros(plain.cache_shape(paged.num_blocks))
    q = reference_input.KERNEL.build(wanted)(qkv, torch.arange(length), None, cache, paged.history)[
        paged.query_index
    ]
    wanted = replace(wanted, kv_layout=op.kv_layout)
    (lanes,) = KERNELS["attention_input"]
    writer = reference_input.KERNEL if isinstance(lanes.supports(wanted), Unsupported) else lanes
    theirs = torch.zeros(op.cache_shape(paged.num_blocks))
    writer.build(wanted)(qkv, torch.arange(length), None, theirs, paged.history)

    got = op(q, theirs, paged.attention, sinks)

    assert error(got, plain(q, cache, paged.attention, sinks)) < 3e-6


@pytest.mark.parametrize(
    "weight",
    [
        IntWeight(),
        IntWeight(group_size=32),
        IntWeight(act_dtype="int8"),
        Float8Weight(),
    ],
    ids=str,
)
def test_products_agree_with_the_reference(weight: WeightFormat) -> None:
    spec = LinearSpec(dtype="float32", in_features=192, out_features=70, bias=True, weight=weight)
    (kernel,) = KERNELS["linear"]
    op, plain = kernel.build(spec), reference_linear.KERNEL.build(spec)
    numbers = torch.randint(-127, 128, (70, 192), dtype=torch.int8)
    groups = 192 // weight.group_size if isinstance(weight, IntWeight) and weight.group_size else 1
    weights = {"weight": numbers, "scale": torch.rand(70, groups) + 0.5}
    if isinstance(weight, Float8Weight):
        weights["weight"] = torch.randn(70, 192).to(torch.float8_e4m3fn)
    x, bias = torch.randn(9, 192), torch.randn(70)
    want = plain(x, plain.pack(weights), bias)

    assert error(op(x, op.pack(weights), bias), want) < 3e-6


@pytest.mark.parametrize("kept", [DenseWeight(dtype="float32"), IntWeight()], ids=str)
def test_routed_experts_agree_with_the_reference(kept: WeightFormat) -> None:
    spec = MoESpec(
        dtype="float32",
        num_experts=6,
        hidden_size=96,
        intermediate_size=40,
        activation="silu",
        routing=Routing(top_k=2),
        gate_up=kept,
        down=kept,
    )
    (kernel,) = KERNELS["moe"]
    op, plain = kernel.build(spec), reference_moe.KERNEL.build(spec)

    def drawn(outputs: int, inner: int) -> dict[str, torch.Tensor]:
        if isinstance(kept, DenseWeight):
            return {"weight": torch.randn(6, outputs, inner)}
        numbers = torch.randint(-127, 128, (6, outputs, inner), dtype=torch.int8)
        return {"weight": numbers, "scale": torch.rand(6, outputs, 1) / 100}

    gate_up, down = drawn(80, 96), drawn(96, 40)
    x, logits = torch.randn(11, 96), torch.randn(11, 6)

    got = op(x, logits, op.pack(gate_up, down))

    assert error(got, plain(x, logits, plain.pack(gate_up, down))) < 3e-6


def test_what_no_kernel_takes_is_refused_with_a_reason() -> None:
    (attention,) = KERNELS["attention"]

    for spec, word in (
        (replace(SPEC, dtype="float16"), "float16"),
        (replace(SPEC, head_dim=512), "head_dim"),
        (replace(SPEC, block_size=12), "page size"),
    ):
        answer = attention.supports(spec)
        assert isinstance(answer, Unsupported)
        assert word in answer.reason
    assert {} == kernels("v4")


@pytest.mark.parametrize("missing", ["jax", "torch_tpu"])
def test_without_the_way_from_torch_all_is_refused(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("allmetal_tpu.pallas.bridge._is_installed", lambda name: name != missing)

    answer = KERNELS["attention"][0].supports(SPEC)

    assert isinstance(answer, Unsupported)
    assert f"package {missing} is missing" in answer.reason
