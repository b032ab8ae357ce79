"""What usual models ask of the shared kernels, small: each op by name, and a call that launches."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from allmetal.platform.specs import (
    AttentionInputSpec,
    AttentionSpec,
    DecodeStateSpec,
    DenseWeight,
    GatedActivationSpec,
    IntWeight,
    LinearSpec,
    MoESpec,
    RMSNormSpec,
    Routing,
    SamplingSpec,
)
from allmetal.testing.batches import paged_batch
from allmetal_triton.target import Target

DTYPE = "bfloat16"
TARGET = Target(num_cores=lambda: 24, shared_memory=192 << 10)
HEADS, KV_HEADS, HEAD_DIM, PAGE = 32, 8, 128, 16


def zeros(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.zeros(*shape, dtype=dtype)


def ops() -> Iterator[tuple[str, Callable[[], object]]]:
    yield "rms_norm", _rms_norm
    yield "gated_activation", _gated_activation
    yield "decode_state", _decode_state
    yield "attention_input", _attention_input
    yield "attention of one query", lambda: _attention([1, 1])
    yield "attention of many queries", lambda: _attention([1, 300])
    yield "linear", lambda: _linear(DenseWeight(dtype=DTYPE))
    yield "linear of int8", lambda: _linear(IntWeight())
    yield "moe", _moe
    yield "sampling", _sampling


def _rms_norm() -> None:
    from allmetal_triton.ops.rms_norm import TritonRMSNorm

    spec = RMSNormSpec(dtype=DTYPE, dim=4096, eps=1e-6, residual=True)
    x = zeros(2, 4096)
    TritonRMSNorm(TARGET).build(spec)(x, x[0], x)


def _gated_activation() -> None:
    from allmetal_triton.ops.gated_activation import TritonGatedActivation

    spec = GatedActivationSpec(dtype=DTYPE, dim=3072, activation="silu")
    TritonGatedActivation(TARGET).build(spec)(zeros(2, 2 * 3072))


def _decode_state() -> None:
    from allmetal_triton.ops.decode_state import TritonDecodeState

    state = TritonDecodeState().build(DecodeStateSpec(block_size=PAGE))
    words, tokens = zeros(3, 2, dtype=torch.int64), zeros(3, 4096, dtype=torch.int32)
    token_ids, *_ = state.read(words, tokens, tokens[None, :, :256].contiguous())
    state.write(words, tokens, token_ids)


def _attention_input() -> None:
    from allmetal_triton.ops.attention_input import TritonAttentionInput

    spec = AttentionInputSpec(
        dtype=DTYPE,
        kv_dtype=DTYPE,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        block_size=PAGE,
        kv_layout="nhd",
        rotary_dim=HEAD_DIM,
    )
    at = torch.arange(2)
    TritonAttentionInput(TARGET).build(spec)(
        zeros(2, (HEADS + 2 * KV_HEADS) * HEAD_DIM),
        at,
        zeros(64, HEAD_DIM, dtype=torch.float32),
        zeros(8, 2, PAGE, KV_HEADS, HEAD_DIM),
        at,
    )


def _attention(lens: list[int]) -> None:
    from allmetal_triton.ops.attention import TritonAttention

    spec = AttentionSpec(
        dtype=DTYPE,
        kv_dtype=DTYPE,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        block_size=PAGE,
        scale=HEAD_DIM**-0.5,
    )
    op = TritonAttention(TARGET).build(spec)
    paged = paged_batch(lens, [400, 400], PAGE, generator=torch.Generator())
    cache = zeros(*op.cache_shape(paged.num_blocks))
    op(zeros(sum(lens), HEADS, HEAD_DIM), cache, paged.attention)


def _linear(weight: DenseWeight | IntWeight) -> None:
    from allmetal_triton.ops.linear import TritonLinear

    spec = LinearSpec(dtype=DTYPE, in_features=512, out_features=256, bias=False, weight=weight)
    kernel = TritonLinear(TARGET)
    answer = kernel.supports(spec)
    if hasattr(answer, "reason"):
        raise NotImplementedError(answer.reason)
    op = kernel.build(spec)
    stored = torch.int8 if isinstance(weight, IntWeight) else torch.bfloat16
    tensors = {"weight": zeros(256, 512, dtype=stored)}
    if isinstance(weight, IntWeight):
        tensors["scale"] = zeros(256, 1, dtype=torch.float32)
    op(zeros(2, 512), op.pack(tensors), None)


def _moe() -> None:
    from allmetal_triton.ops.moe import TritonMoE

    dense = DenseWeight(dtype=DTYPE)
    spec = MoESpec(
        dtype=DTYPE,
        num_experts=8,
        hidden_size=256,
        intermediate_size=128,
        activation="silu",
        routing=Routing(top_k=2),
        gate_up=dense,
        down=dense,
    )
    op = TritonMoE(TARGET).build(spec)
    packed = op.pack({"weight": zeros(8, 256, 256)}, {"weight": zeros(8, 256, 128)})
    op(zeros(4, 256), zeros(4, 8, dtype=torch.float32), packed)


def _sampling() -> None:
    from allmetal_triton.ops.sampling import TritonSampling

    op = TritonSampling(TARGET).build(SamplingSpec(vocab_size=32_000))
    logits, ones = zeros(2, 32_000, dtype=torch.float32), torch.ones(2)
    op(logits, None, None, None, None, None)
    op(logits, ones, torch.ones(2, dtype=torch.int32), ones, ones, ones)
