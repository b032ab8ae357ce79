"""Compile what is written for Hopper, on any machine; prints what each kernel takes.

A program of its own, since a process either interprets Triton's kernels or compiles them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import torch

from allmetal.platform.specs import AttentionSpec, DenseWeight, Float8Weight, LinearSpec
from allmetal.testing.batches import paged_batch
from allmetal_cuda.ops.hopper_attention import HopperAttention
from allmetal_cuda.ops.hopper_float8 import HopperFloat8Linear
from allmetal_cuda.ops.hopper_linear import HopperLinear, plan
from allmetal_triton.compile_only import SHARED_MEMORY, compiling_for
from allmetal_triton.ops.float8 import round_groups
from allmetal_triton.target import Target

LLAMA = AttentionSpec(
    dtype="bfloat16",
    kv_dtype="bfloat16",
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    block_size=16,
    scale=128**-0.5,
)
ATTENTIONS = [
    LLAMA,
    replace(LLAMA, head_dim=64, num_heads=64, window=128, sinks=True),
    replace(LLAMA, head_dim=256, num_heads=8, num_kv_heads=4, window=512, soft_cap=50.0),
    replace(LLAMA, block_size=64),
]
# (in, out): tokens shared out, channels shared out, whole tiles, more of them than cores.
LINEARS = [(2048, 1024), (1024, 6144), (4096, 4096), (4096, 6144), (4096, 28672)]
NUM_TOKENS = (16, 32, 64, 128, 256)


def compile_attention(spec: AttentionSpec, target: Target, query_lens: list[int]) -> None:
    op = HopperAttention(replace(target, num_cores=lambda: 1)).build(spec)
    paged = paged_batch(query_lens, query_lens, spec.block_size, generator=torch.Generator())
    cache = torch.zeros(op.cache_shape(paged.num_blocks), dtype=torch.bfloat16)
    q = torch.zeros(sum(query_lens), spec.num_heads, spec.head_dim, dtype=torch.bfloat16)
    op(q, cache, paged.attention, torch.zeros(spec.num_heads) if spec.sinks else None)


def compile_linear(in_features: int, out_features: int, target: Target) -> None:
    spec = LinearSpec(
        dtype="bfloat16",
        in_features=in_features,
        out_features=out_features,
        bias=False,
        weight=DenseWeight(dtype="bfloat16"),
    )
    op = HopperLinear(target).build(spec)
    weight = op.pack({"weight": torch.empty(out_features, in_features, dtype=torch.bfloat16)})
    for num_tokens in NUM_TOKENS:
        # The others are cuBLAS's, which is not here.
        if plan(in_features, out_features, num_tokens, target.num_cores()) is not None:
            op(torch.empty(num_tokens, in_features, dtype=torch.bfloat16), weight, None)


def compile_float8(in_features: int, out_features: int, target: Target) -> None:
    kind = "float8_e4m3fn"
    spec = LinearSpec(
        dtype="bfloat16",
        in_features=in_features,
        out_features=out_features,
        bias=True,
        weight=Float8Weight(act_dtype=kind),
    )
    op = HopperFloat8Linear(target).build(spec)
    weight = torch.empty(out_features, in_features, dtype=torch.float8_e4m3fn)
    packed = op.pack({"weight": weight, "scale": torch.ones(out_features, 1)})
    for num_tokens in (1, 64):
        x = torch.empty(num_tokens, in_features, dtype=torch.bfloat16)
        op(x, packed, torch.empty(out_features, dtype=torch.bfloat16))


def compile_groups(channels: int, target: Target) -> None:
    """What is launched before cuBLAS multiplies blocks with a scale each."""
    x = torch.empty(64, channels, dtype=torch.bfloat16)
    round_groups(x, torch.float8_e4m3fn, 128, 64, target.launch_options)


def main() -> None:
    target = Target(num_cores=lambda: 132, shared_memory=SHARED_MEMORY[90], dot_rows=64, early=True)
    with compiling_for("cuda", 90) as found:
        for spec in ATTENTIONS:
            compile_attention(spec, target, [300])
            if spec.head_dim <= 128:
                compile_attention(spec, target, [1] * 8)
        for shape in LINEARS:
            compile_linear(*shape, target)
        compile_float8(4096, 4096, target)
        compile_groups(4096, target)
    print(json.dumps([asdict(usage) for usage in found]))


if __name__ == "__main__":
    main()
