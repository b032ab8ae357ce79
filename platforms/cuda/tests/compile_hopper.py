"""Compile the attention of prompts for Hopper, on any machine; prints what each kernel takes.

A program of its own, since a process either interprets Triton's kernels or compiles them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import torch

from allmetal.platform.specs import AttentionSpec
from allmetal.testing.batches import paged_batch
from allmetal_cuda.ops.hopper_attention import HopperAttention
from allmetal_triton.compile_only import SHARED_MEMORY, compiling_for
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
SPECS = [
    LLAMA,
    replace(LLAMA, head_dim=64, num_heads=64, window=128, sinks=True),
    replace(LLAMA, head_dim=256, num_heads=8, num_kv_heads=4, window=512, soft_cap=50.0),
    replace(LLAMA, block_size=64),
]


def main() -> None:
    target = Target(num_cores=lambda: 1, shared_memory=SHARED_MEMORY[90], dot_rows=64)
    with compiling_for("cuda", 90) as found:
        for spec in SPECS:
            op = HopperAttention(target).build(spec)
            paged = paged_batch([300], [300], spec.block_size, generator=torch.Generator())
            cache = torch.zeros(op.cache_shape(paged.num_blocks), dtype=torch.bfloat16)
            q = torch.zeros(300, spec.num_heads, spec.head_dim, dtype=torch.bfloat16)
            op(q, cache, paged.attention, torch.zeros(spec.num_heads) if spec.sinks else None)
    print(json.dumps([asdict(usage) for usage in found]))


if __name__ == "__main__":
    main()
