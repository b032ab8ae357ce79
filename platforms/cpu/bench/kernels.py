"""Time the platform's kernels on the shapes of a 0.6 B model (Qwen3: hidden 1024, 16 and 8 heads of
128, MLP 3072, vocabulary 151936), bfloat16: microseconds, and the share of the memory bandwidth or
of the matrix rate that this machine was measured to have.

    python platforms/cpu/bench/kernels.py [--threads N] [--family linear] [--kernels native,onednn]

Tensors are rotated so that weights and caches come from memory, as they do in a step.  Figures are
the best of several runs; on a busy machine they still vary, and so does the bandwidth, which is
therefore measured before each case.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from allmetal.platform.contract import AnyKernel, OpenOptions, Supported
from allmetal.platform.specs import (
    AttentionInputSpec,
    AttentionSpec,
    DenseWeight,
    GatedActivationSpec,
    GGUFWeight,
    IntWeight,
    LinearSpec,
    RMSNormSpec,
    SamplingSpec,
    WeightFormat,
)
from allmetal.quant.ggml import BLOCKS, row_bytes
from allmetal.testing.batches import paged_batch
from allmetal_cpu import CpuPlatform

DTYPE = "bfloat16"
HEADS, KV_HEADS, HEAD_DIM, HIDDEN, VOCABULARY, BLOCK = 16, 8, 128, 1024, 151936, 32
QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM
LINEARS = ((QKV, HIDDEN), (HIDDEN, HEADS * HEAD_DIM), (6144, HIDDEN), (HIDDEN, 3072))
FORMATS: tuple[WeightFormat, ...] = (
    DenseWeight(dtype=DTYPE),
    IntWeight(),
    IntWeight(act_dtype="int8"),
    IntWeight(bits=4, group_size=128),
    *(GGUFWeight(type=name) for name in ("Q8_0", "Q4_0", "Q4_K", "Q5_K", "Q6_K")),
)
ROTATED_BYTES = 200 << 20
_PROBED = torch.ones(ROTATED_BYTES // 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`calls` do the same work on different tensors; `nbytes` and `flops` are of one call."""

    name: str
    calls: list[Callable[[], object]]
    nbytes: int
    flops: int = 0


def best_seconds(calls: list[Callable[[], object]], budget: float = 0.4) -> float:
    """Of one call, in the best of the rounds that fit the budget (at least three)."""
    begin, best, rounds = time.perf_counter(), float("inf"), 0
    while rounds < 3 or time.perf_counter() - begin < budget:
        start = time.perf_counter()
        for call in calls:
            call()
        best = min(best, time.perf_counter() - start)
        rounds += 1
    return best / len(calls)


def read_bandwidth() -> float:
    """Bytes a second that all threads together read from memory."""
    return _PROBED.nbytes / best_seconds([lambda: _PROBED.sum()], 0.1)


def matrix_rate() -> float:
    """Operations a second of a large product in torch, bfloat16."""
    a = torch.randn(1024, 1024).to(torch.bfloat16)
    return 2 * 1024**3 / best_seconds([lambda: a @ a], 1.0)


def copies(nbytes: int) -> int:
    return max(1, min(40, ROTATED_BYTES // nbytes))


def weights_of(spec: LinearSpec) -> dict[str, torch.Tensor]:
    shape = (spec.out_features, spec.in_features)
    match spec.weight:
        case DenseWeight():
            return {"weight": torch.randn(shape).to(torch.bfloat16)}
        case IntWeight(bits=bits, group_size=size):
            limit = 2 ** (bits - 1)
            values = torch.randint(1 - limit, limit, shape, dtype=torch.int8)
            return {"weight": values, "scale": torch.rand(shape[0], shape[1] // (size or shape[1]))}
        case GGUFWeight(type=name):
            return {"weight": torch.zeros(shape[0], row_bytes(name, shape[1]), dtype=torch.uint8)}


def label_of(weight: WeightFormat) -> str:
    match weight:
        case IntWeight(bits=bits, group_size=size, act_dtype=act):
            return f"int{bits}" + f" of {size}" * bool(size) + f", {act} x" * (act is not None)
        case GGUFWeight(type=name):
            return name
        case _:
            return weight.kind


def packed_bytes(packed: object) -> int:
    """Of a weight in the kernel's own layout, which is what a step reads."""
    parts = packed if isinstance(packed, tuple) else (packed,)
    return sum(part.nbytes for part in parts if isinstance(part, torch.Tensor))


def linear(kernel: AnyKernel) -> Iterator[Case]:
    for weight in FORMATS:
        for n, c in (*LINEARS, (VOCABULARY, HIDDEN)):
            if isinstance(weight, GGUFWeight) and c % BLOCKS[weight.type].elements:
                continue
            spec = LinearSpec(dtype=DTYPE, in_features=c, out_features=n, bias=False, weight=weight)
            if not isinstance(kernel.supports(spec), Supported):
                continue
            op, weights = kernel.build(spec), weights_of(spec)
            nbytes = weights["weight"].nbytes
            packed = [
                op.pack({k: v.clone() for k, v in weights.items()}) for _ in range(copies(nbytes))
            ]
            for m in (1, 8, 16, 512) if n < VOCABULARY else (1, 16):
                x = torch.randn(m, c).to(torch.bfloat16)
                used = packed if m < 64 else packed[:2]
                yield Case(
                    name=f"{label_of(weight)} {n} x {c}, {m} tokens",
                    calls=[lambda p=p, x=x, op=op: op(x, p, None) for p in used],
                    nbytes=packed_bytes(packed[0]),
                    flops=2 * m * n * c,
                )


def attention(kernel: AnyKernel) -> Iterator[Case]:
    spec = AttentionSpec(
        dtype=DTYPE,
        kv_dtype=DTYPE,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        block_size=BLOCK,
        scale=HEAD_DIM**-0.5,
    )
    op = kernel.build(spec)
    for query, length, batch in ((1, 1024, 1), (1, 1024, 16), (512, 512, 1), (512, 4096, 1)):
        paged = paged_batch(
            [query] * batch, [length] * batch, BLOCK, generator=torch.Generator().manual_seed(0)
        )
        nbytes = batch * length * KV_HEADS * HEAD_DIM * 4
        shape = op.cache_shape(paged.num_blocks)
        caches = [torch.randn(shape).to(torch.bfloat16) for _ in range(copies(nbytes))]
        q = torch.randn(query * batch, HEADS, HEAD_DIM).to(torch.bfloat16)
        seen = query * (length - query) + query * (query + 1) // 2
        yield Case(
            name=f"{batch} x {query} of {length} tokens",
            calls=[lambda c=c, q=q, p=paged: op(q, c, p.attention) for c in caches],
            nbytes=nbytes,
            flops=4 * batch * HEADS * HEAD_DIM * seen,
        )


def attention_input(kernel: AnyKernel) -> Iterator[Case]:
    spec = AttentionInputSpec(
        dtype=DTYPE,
        kv_dtype=DTYPE,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        block_size=BLOCK,
        kv_layout="hnd",
        rotary_dim=HEAD_DIM,
        qk_norm="head",
    )
    op = kernel.build(spec)
    cache = torch.zeros(64, 2, KV_HEADS, BLOCK, HEAD_DIM, dtype=torch.bfloat16)
    angles, weight = torch.rand(2048, HEAD_DIM), torch.ones(HEAD_DIM, dtype=torch.bfloat16)
    for t in (1, 16, 512):
        qkv, at = torch.randn(t, QKV).to(torch.bfloat16), torch.arange(t)
        yield Case(
            name=f"{t} tokens",
            calls=[lambda q=qkv, at=at: op(q, at, angles, cache, at, weight, weight)],
            nbytes=2 * qkv.nbytes,
        )


def rms_norm(kernel: AnyKernel) -> Iterator[Case]:
    op = kernel.build(RMSNormSpec(dtype=DTYPE, dim=HIDDEN, eps=1e-6, residual=True))
    weight = torch.ones(HIDDEN, dtype=torch.bfloat16)
    for t in (1, 16, 512):
        x = torch.randn(t, HIDDEN).to(torch.bfloat16)
        yield Case(name=f"{t} tokens", calls=[lambda x=x: op(x, weight, x)], nbytes=4 * x.nbytes)


def gated_activation(kernel: AnyKernel) -> Iterator[Case]:
    op = kernel.build(GatedActivationSpec(dtype=DTYPE, dim=3072, activation="silu"))
    for t in (1, 16, 512):
        x = torch.randn(t, 6144).to(torch.bfloat16)
        yield Case(name=f"{t} tokens", calls=[lambda x=x: op(x)], nbytes=3 * x.nbytes // 2)


def sampling(kernel: AnyKernel) -> Iterator[Case]:
    op = kernel.build(SamplingSpec(vocab_size=VOCABULARY))
    for rows in (1, 16):
        logits, one = torch.randn(rows, VOCABULARY) * 3, torch.ones(rows)
        k, half = torch.full((rows,), 50, dtype=torch.int32), one * 0.5
        for name, options in {
            "greedy": (None, None, None, None, None),
            "temperature": (one, None, None, None, half),
            "top-k 50, top-p 0.9": (one, k, one * 0.9, None, half),
        }.items():
            yield Case(
                name=f"{rows} rows, {name}",
                calls=[lambda o=options, x=logits: op(x, *o)],
                nbytes=logits.nbytes,
            )


FAMILIES = {
    "linear": linear,
    "attention": attention,
    "attention_input": attention_input,
    "rms_norm": rms_norm,
    "gated_activation": gated_activation,
    "sampling": sampling,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--family", choices=FAMILIES)
    parser.add_argument("--kernels", help="names, comma separated; default: native, or all")
    asked = parser.parse_args()
    platform = CpuPlatform()
    (device,) = platform.probe()  # type: ignore[misc]
    opened = platform.open(device, OpenOptions(threads=asked.threads))
    bandwidth, rate = read_bandwidth(), matrix_rate()
    print(f"{device.name}; {dict(opened.versions())}")
    print(f"memory {bandwidth / 1e9:.1f} GB/s, matrix product {rate / 1e9:.0f} GFLOP/s (torch)")
    names = asked.kernels.split(",") if asked.kernels else ["native"]
    for family, cases in FAMILIES.items():
        if asked.family not in (None, family):
            continue
        for kernel in platform.kernels(device)[family]:
            if kernel.name not in names:
                continue
            print(f"\n{family}, kernel {kernel.name}")
            for case in cases(kernel):
                bandwidth = read_bandwidth()
                seconds = best_seconds(case.calls)
                share = case.nbytes / seconds / bandwidth
                line = f"  {case.name:32} {seconds * 1e6:10.1f} us"
                line += f" {case.nbytes / seconds / 1e9:7.1f} GB/s ({share:4.0%} of memory's)"
                if case.flops:
                    line += f" {case.flops / seconds / 1e9:7.0f} GFLOP/s"
                print(line, flush=True)


if __name__ == "__main__":
    main()
