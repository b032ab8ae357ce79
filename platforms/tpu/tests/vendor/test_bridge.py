"""TorchTPU takes the Pallas kernels as ops of torch, and what it would hand to the device is a
TPU's program.

It stops here: to run one, TorchTPU asks the runtime for its number of chips, which no client but a
TPU's own answers.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("jax", reason="needs jax")

from torch._subclasses.fake_tensor import FakeTensorMode

from allmetal.platform.specs import (
    AttentionSpec,
    DenseWeight,
    IntWeight,
    LinearSpec,
    MoESpec,
    Routing,
)
from allmetal.testing.batches import paged_batch
from allmetal_tpu.pallas import bridge, kernels

SPEC = AttentionSpec(
    dtype="bfloat16",
    kv_dtype="bfloat16",
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    block_size=16,
    scale=0.125,
    sinks=True,
)


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is exported for each call of an op that is made from here on."""
    seen: list[str] = []
    plain = bridge.torch_op

    def watched(name: str, function: Any) -> Any:
        made = plain(name, function)
        kernel = made._init_fn
        exported = kernel.exported

        def export(*args: Any, **kwargs: Any) -> Any:
            program = exported(*args, **kwargs)
            seen.append(str(program.mlir_module()))
            return program

        kernel.exported = export
        return made

    for family in ("attention", "linear", "moe"):
        monkeypatch.setattr(f"allmetal_tpu.pallas.ops.{family}.torch_op", watched)
    return seen


def test_attention_is_a_program_of_the_tpu(programs: list[str]) -> None:
    (kernel,) = kernels("v5e")["attention"]
    op = kernel.build(SPEC)
    paged = paged_batch([1, 20], [40, 90], SPEC.block_size, generator=torch.Generator())

    with FakeTensorMode(allow_non_fake_inputs=True):
        q = torch.empty(21, SPEC.num_heads, SPEC.head_dim, dtype=torch.bfloat16)
        cache = torch.empty(op.cache_shape(paged.num_blocks), dtype=torch.bfloat16)
        out = op(q, cache, paged.attention, torch.empty(SPEC.num_heads))

    assert (q.shape, q.dtype) == (out.shape, out.dtype)
    assert programs
    assert all("tpu_custom_call" in program for program in programs)


def test_products_and_experts_are_programs_of_the_tpu(programs: list[str]) -> None:
    linear_spec = LinearSpec(
        dtype="bfloat16", in_features=96, out_features=70, bias=True, weight=IntWeight()
    )
    dense = DenseWeight(dtype="bfloat16")
    moe_spec = MoESpec(
        dtype="bfloat16",
        num_experts=6,
        hidden_size=96,
        intermediate_size=40,
        activation="silu",
        routing=Routing(top_k=2),
        gate_up=dense,
        down=dense,
    )
    offered = kernels("v6e")
    linear, moe = offered["linear"][0].build(linear_spec), offered["moe"][0].build(moe_spec)

    with FakeTensorMode():
        x = torch.empty(9, 96, dtype=torch.bfloat16)
        weights = {"weight": torch.empty(70, 96, dtype=torch.int8), "scale": torch.empty(70, 1)}
        y = linear(x, linear.pack(weights), torch.empty(70, dtype=torch.bfloat16))
        gate_up = {"weight": torch.empty(6, 80, 96, dtype=torch.bfloat16)}
        down = {"weight": torch.empty(6, 96, 40, dtype=torch.bfloat16)}
        z = moe(x, torch.empty(9, 6), moe.pack(gate_up, down))

    assert ((9, 70), x.shape) == (tuple(y.shape), z.shape)
    assert [1, 2] == sorted(program.count("custom_call @tpu_custom_call") for program in programs)


def test_kernels_by_hand_come_first_where_they_can_be_called(tpu: Any, info: Any) -> None:
    from allmetal_tpu.kernels import kernels as offered

    both, plain = offered(info), offered(info, by_hand=False)

    assert "pallas_attention" == both["attention"][0].name
    assert both["attention"][1:] == plain["attention"]
    assert both["rms_norm"] == plain["rms_norm"]
