"""Our calls of vllm-xpu-kernels against its own schemas, computed by the reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import real_schemas
import torch
from torch.nn import functional

from allmetal.platform import reference
from allmetal.platform.contract import Supported, Unsupported
from allmetal.platform.specs import (
    AttentionSpec,
    DenseWeight,
    GatedActivationSpec,
    MoESpec,
    RMSNormSpec,
    Routing,
)
from allmetal.testing.batches import paged_batch
from allmetal_triton.target import Target
from allmetal_xpu.vllm import package
from allmetal_xpu.vllm.attention import VllmAttention
from allmetal_xpu.vllm.elementwise import VllmGatedActivation, VllmRMSNorm
from allmetal_xpu.vllm.moe import VllmMoE

SPEC = AttentionSpec(
    dtype="float16",
    kv_dtype="float16",
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    block_size=16,
    scale=0.125,
)


def norm(offset: float) -> Any:
    def call(y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
        y.copy_(functional.rms_norm(x.float(), x.shape[1:], weight.float() + offset, eps))

    return call


def activation(call: Any) -> Any:
    def both(y: torch.Tensor, x: torch.Tensor) -> None:
        gate, up = x.float().chunk(2, -1)
        y.copy_(call(gate) * up)

    return both


def remap(x: Any, _xs: Any, rows: Any, _rs: Any, _map: Any, counts: Any, places: Any, ids: Any,
          total: int, local: int) -> None:  # fmt: skip
    """Rows in the order of their experts, and where each of a token's went."""
    assert total == local == len(counts)
    order = ids.flatten().argsort(stable=True)
    rows.copy_(x[order // ids.shape[1]])
    places.view(-1)[order] = torch.arange(ids.numel(), dtype=places.dtype)
    counts.copy_(torch.bincount(ids.flatten(), minlength=total))


def grouped(a: Any, _as: Any, b: Any, _bs: Any, _bias: Any, d: Any, counts: Any, n: int, k: int,
            experts: int) -> torch.Tensor:  # fmt: skip
    assert b.shape == (experts, k, n)
    first = 0
    for expert, count in enumerate(counts.tolist()):
        d[first : first + count] = a[first : first + count].float() @ b[expert].float()
        first += count
    return d


def gather(y: Any, parts: Any, shares: Any, places: Any, _experts: int) -> None:
    y.copy_((parts[places.long()].float() * shares[..., None]).sum(1))


class Calls:
    """What attention was called with, last."""

    seen: tuple[Any, ...] = ()


def varlen(*args: Any) -> list[torch.Tensor]:
    """The reference, from the arguments alone."""
    Calls.seen = args
    q, k, v, out, cu_q, _, lengths, _, table, _, most_q, most_k = args[:12]
    scale, sinks, left, cap = args[16], args[17], args[20], args[22]
    spec = AttentionSpec(
        dtype="float16",
        kv_dtype="float16",
        num_heads=q.shape[1],
        num_kv_heads=k.shape[2],
        head_dim=q.shape[2],
        block_size=k.shape[1],
        scale=scale,
        window=left + 1 if left >= 0 else None,
        soft_cap=cap or None,
        sinks=sinks is not None,
    )
    from allmetal.platform.batch import AttentionBatch

    batch = AttentionBatch(
        query_start=cu_q,
        seq_lens=lengths,
        block_table=table,
        slot_mapping=torch.empty(0),
        max_query_len=most_q,
        max_seq_len=most_k,
        host_query_lens=cu_q.diff().tolist(),
        host_seq_lens=lengths.tolist(),
    )
    (kernel,) = reference.kernels()["attention"]
    out.copy_(kernel.build(spec)(q, torch.stack([k, v], 1), batch, sinks))
    return [out]


COMPUTED = {
    "_C::rms_norm": norm(0.0),
    "_C::gemma_rms_norm": norm(1.0),
    "_C::silu_and_mul": activation(functional.silu),
    "_C::gelu_and_mul": activation(functional.gelu),
    "_C::gelu_tanh_and_mul": activation(lambda x: functional.gelu(x, approximate="tanh")),
    "_moe_C::remap_hidden_states": remap,
    "_moe_C::moe_gather": gather,
    "_xpu_C::cutlass_grouped_gemm_interface": grouped,
    "_vllm_fa2_C::varlen_fwd": varlen,
}


@pytest.fixture(scope="module", autouse=True)
def _operators() -> Iterator[None]:
    schemas = {library: real_schemas.read(library) for library in real_schemas.LIBRARIES}
    assert all(name.partition("::")[2] in schemas[name.partition("::")[0]] for name in COMPUTED)
    kept = real_schemas.define(schemas, COMPUTED)
    yield
    del kept


def exact(family: str, spec: Any) -> Any:
    (kernel,) = reference.kernels()[family]
    return kernel.build(spec)


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_norms_are_the_references(offset: float) -> None:
    spec = RMSNormSpec(dtype="float16", dim=64, eps=1e-5, offset=offset)
    assert isinstance(VllmRMSNorm().supports(spec), Supported)
    x, weight = torch.randn(5, 128).half()[:, :64], torch.randn(64).half()
    y, s = VllmRMSNorm().build(spec)(x, weight)
    expected = exact("rms_norm", spec)(x, weight)
    assert torch.allclose(y, expected[0], atol=4e-3)
    assert torch.equal(s, expected[1])


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_tanh"])
def test_activations_are_the_references(name: Any) -> None:
    spec = GatedActivationSpec(dtype="float16", dim=48, activation=name)
    assert isinstance(VllmGatedActivation().supports(spec), Supported)
    x = torch.randn(5, 96).half()
    y = VllmGatedActivation().build(spec)(x)
    assert torch.allclose(y, exact("gated_activation", spec)(x), atol=4e-3)


@pytest.mark.parametrize(
    "change", [{}, {"window": 20}, {"soft_cap": 5.0}, {"sinks": True}], ids=str
)
def test_attention_is_called_as_its_schema_wants(change: dict[str, Any]) -> None:
    spec = AttentionSpec(**{**{f: getattr(SPEC, f) for f in SPEC.__slots__}, **change})
    answer = VllmAttention().supports(spec)
    assert isinstance(answer, Supported)
    assert answer.rank > 10, "only who names it gets it"
    paged = paged_batch([1, 20], [40, 33], 16, generator=torch.Generator())
    op = VllmAttention().build(spec)
    cache = torch.randn(op.cache_shape(paged.num_blocks)).half()
    q, sinks = torch.randn(21, 4, 64).half(), torch.randn(4).half() if spec.sinks else None
    expected = exact("attention", spec)(q, cache, paged.attention, sinks)
    assert torch.equal(op(q, cache, paged.attention, sinks), expected)
    assert len(Calls.seen) == 29


@pytest.mark.parametrize("num_tokens", [0, 1, 9])
def test_experts_are_the_references(num_tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Choice by torch here: this environment's Triton compiles and interprets nothing."""
    from allmetal.platform.reference.routing import route
    from allmetal_xpu.vllm import moe

    def choice(spec: MoESpec, _: Target) -> Any:
        def choose(logits: torch.Tensor, correction: torch.Tensor | None) -> Any:
            ids, shares = route(logits, spec.routing, correction)
            return ids.int(), shares.float()

        return choose

    monkeypatch.setattr(moe, "ExpertChoice", choice)
    dense = DenseWeight(dtype="float16")
    spec = MoESpec(
        dtype="float16",
        num_experts=4,
        hidden_size=48,
        intermediate_size=32,
        activation="silu",
        routing=Routing(top_k=2),
        gate_up=dense,
        down=dense,
    )
    kernel = VllmMoE(Target(num_cores=lambda: 8, shared_memory=65_536))
    assert isinstance(kernel.supports(spec), Supported)
    gate_up = {"weight": (torch.randn(4, 64, 48) / 7).half()}
    down = {"weight": (torch.randn(4, 48, 32) / 6).half()}
    x, logits = torch.randn(num_tokens, 48).half(), torch.randn(num_tokens, 4)
    ours, theirs = kernel.build(spec), exact("moe", spec)
    y = ours(x, logits, ours.pack(gate_up, down))
    assert torch.allclose(y, theirs(x, logits, theirs.pack(gate_up, down)), atol=4e-3)


def test_a_call_that_the_package_would_refuse_is_refused_here() -> None:
    call = package.operator("_C", "rms_norm")
    with pytest.raises(RuntimeError, match="epsilon"):
        call(torch.ones(2, 8), torch.ones(2, 8), torch.ones(8))


def test_what_works_in_place_or_rounds_otherwise_is_refused() -> None:
    plain = RMSNormSpec(dtype="float16", dim=64, eps=1e-5)
    for change, told in (
        ({"residual": True}, "writes over both"),
        ({"offset": 0.5}, "0 or 1"),
        ({"cast_before_weight": True}, "rounds once"),
    ):
        fields = {f: getattr(plain, f) for f in plain.__slots__}
        answer = VllmRMSNorm().supports(RMSNormSpec(**{**fields, **change}))
        assert isinstance(answer, Unsupported)
        assert told in answer.reason
