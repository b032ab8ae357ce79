"""Every kernel of the CUDA platform beside the least time its bytes and operations allow.

Usage: python platforms/cuda/bench/kernels.py [--only attention,linear] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from timing import Ceilings, measure_ceilings, num_sets, seconds

from allmetal.platform.batch import AttentionBatch
from allmetal.platform.select import Kernels
from allmetal.platform.specs import (
    AttentionInputSpec,
    AttentionSpec,
    DenseWeight,
    GatedActivationSpec,
    LinearSpec,
    RMSNormSpec,
    SamplingSpec,
)
from allmetal_cuda import CudaPlatform

DEVICE, DTYPE = "cuda", torch.bfloat16


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measurement; times in microseconds."""

    family: str
    what: str
    time: float
    least: float

    def __str__(self) -> str:
        share = self.least / self.time
        return f"{self.family:16} {self.what:44} {self.time:9.1f} {self.least:9.1f} {share:6.0%}"


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE, dtype=DTYPE)


# ---- attention -----------------------------------------------------------------------------


def batch(query_len: int, seq_len: int, num_seqs: int, page: int) -> AttentionBatch:
    """Equal sequences over blocks in random order; block 0 is the null block."""
    width = -(-seq_len // page)
    table = 1 + torch.randperm(num_seqs * width, device=DEVICE).to(torch.int32)
    return AttentionBatch(
        query_start=torch.arange(num_seqs + 1, device=DEVICE, dtype=torch.int32) * query_len,
        seq_lens=torch.full((num_seqs,), seq_len, device=DEVICE, dtype=torch.int32),
        block_table=table.view(num_seqs, width),
        slot_mapping=torch.zeros(num_seqs * query_len, device=DEVICE, dtype=torch.int64),
        max_query_len=query_len,
        max_seq_len=seq_len,
        host_query_lens=[query_len] * num_seqs,
        host_seq_lens=[seq_len] * num_seqs,
    )


def attention(kernels: Kernels, best: Ceilings) -> Iterator[Row]:
    """Decode, then prompts; the schedule, made once a step and not once a layer, is left out."""
    decodes = [(1, 1024), (1, 8192), (32, 1024), (32, 4096), (128, 1024), (128, 4096)]
    heads = [(32, 8, 128), (16, 8, 128), (32, 4, 128)]
    shapes = [(b, 1, n, h, 16) for h in heads for b, n in decodes]
    shapes += [(32, 1, 4096, heads[0], 64), (128, 1, 1024, heads[0], 64)]
    shapes += [(b, n, n, heads[0], 16) for b, n in ((1, 8192), (8, 1024), (1, 2048))]
    shapes += [(1, 512, 8192, heads[0], 16), (8, 64, 4096, heads[0], 16)]
    for num_seqs, query_len, seq_len, (num_heads, num_kv_heads, dim), page in shapes:
        spec = AttentionSpec(
            dtype="bfloat16",
            kv_dtype="bfloat16",
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=dim,
            block_size=page,
            scale=dim**-0.5,
        )
        op = kernels.bind(spec)
        kv_bytes = num_seqs * seq_len * num_kv_heads * dim * 4
        calls = []
        for _ in range(num_sets(kv_bytes, most=4)):
            given = batch(query_len, seq_len, num_seqs, page)
            cache = normal(*op.cache_shape(1 + given.block_table.numel()))
            q = normal(num_seqs * query_len, num_heads, dim)
            calls.append(partial(op, q, cache, given))
        pairs = query_len * (2 * seq_len - query_len + 1) / 2
        operations = 4 * num_seqs * num_heads * dim * pairs
        what = f"B{num_seqs} {query_len} of {seq_len} H{num_heads}/{num_kv_heads} D{dim} p{page}"
        yield row("attention", what, calls, best.least(kv_bytes, operations))


def attention_input(kernels: Kernels, best: Ceilings) -> Iterator[Row]:
    for norm in ("none", "head"):
        spec = AttentionInputSpec(
            dtype="bfloat16",
            kv_dtype="bfloat16",
            num_heads=32,
            num_kv_heads=8,
            head_dim=128,
            block_size=16,
            kv_layout="nhd",
            rotary_dim=128,
            qk_norm=norm,
        )
        op = kernels.bind(spec)
        weight = normal(128) if norm == "head" else None
        cos_sin = torch.randn(10_000, 128, device=DEVICE)
        for num_tokens in (1, 32, 128, 8192):
            num_bytes = 2 * num_tokens * 48 * 128 * 2
            cache = normal(1 + num_tokens // 16, 2, 16, 8, 128)
            at = torch.arange(num_tokens, device=DEVICE)
            calls = []
            for _ in range(num_sets(num_bytes)):
                qkv = normal(num_tokens, 48 * 128)
                calls.append(partial(op, qkv, at, cos_sin, cache, at, weight, weight))
            yield row("attention_input", f"T{num_tokens} norm {norm}", calls, best.least(num_bytes))


# ---- the rest of a layer -------------------------------------------------------------------


def elementwise(kernels: Kernels, best: Ceilings) -> Iterator[Row]:
    for dim, inner in ((1024, 3072), (4096, 14336)):
        norm = kernels.bind(RMSNormSpec(dtype="bfloat16", dim=dim, eps=1e-6, residual=True))
        gate = kernels.bind(GatedActivationSpec(dtype="bfloat16", dim=inner, activation="silu"))
        weight = normal(dim)
        for num_tokens in (1, 32, 128, 8192):
            num_bytes = 4 * num_tokens * dim * 2
            pairs = [
                (normal(num_tokens, dim), normal(num_tokens, dim))
                for _ in range(num_sets(num_bytes))
            ]
            calls = [partial(norm, x, weight, r) for x, r in pairs]
            yield row("rms_norm", f"T{num_tokens} C{dim}", calls, best.least(num_bytes))
            num_bytes = 3 * num_tokens * inner * 2
            wide = [normal(num_tokens, 2 * inner) for _ in range(num_sets(num_bytes))]
            calls = [partial(gate, x) for x in wide]
            yield row("gated_activation", f"T{num_tokens} C{inner}", calls, best.least(num_bytes))


def linear(kernels: Kernels, best: Ceilings) -> Iterator[Row]:
    shapes = {"8B": [(4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096), (4096, 128256)]}
    shapes["0.6B"] = [(1024, 4096), (2048, 1024), (1024, 6144), (3072, 1024), (1024, 151936)]
    for model, sizes in shapes.items():
        for c, n in sizes:
            spec = LinearSpec(
                dtype="bfloat16",
                in_features=c,
                out_features=n,
                bias=False,
                weight=DenseWeight(dtype="bfloat16"),
            )
            op = kernels.bind(spec)
            packed = [op.pack({"weight": normal(n, c)}) for _ in range(num_sets(2 * n * c, 24))]
            for num_tokens in (1, 2, 8, 32, 128, 256, 8192):
                x = normal(num_tokens, c)
                calls = [partial(op, x, w, None) for w in packed]
                num_bytes = 2 * (n * c + num_tokens * (n + c))
                floor = best.least(num_bytes, 2.0 * num_tokens * n * c)
                yield row("linear", f"{model} T{num_tokens} {c}x{n}", calls, floor)


def sampling(kernels: Kernels, best: Ceilings) -> Iterator[Row]:
    vocab_size = 151_936
    op = kernels.bind(SamplingSpec(vocab_size=vocab_size))
    for num_rows in (1, 32, 256):
        num_bytes = 4 * num_rows * vocab_size
        for name, spread in (("peaked", 4.0), ("flat", 0.2)):
            sets = [
                torch.randn(num_rows, vocab_size, device=DEVICE) * spread
                for _ in range(num_sets(num_bytes))
            ]
            ones, u = torch.ones(num_rows, device=DEVICE), torch.rand(num_rows, device=DEVICE)
            k = torch.full((num_rows,), 50, device=DEVICE, dtype=torch.int32)
            options: dict[str, tuple[Any, ...]] = {
                "greedy": (None, None, None, None, None),
                "temperature": (ones, None, None, None, u),
                "top-p 0.9": (ones, None, ones * 0.9, None, u),
                "top-k 50, top-p 0.9": (ones, k, ones * 0.9, None, u),
            }
            for what, given in options.items():
                calls = [partial(op, x, *given) for x in sets]
                least = best.least(num_bytes)
                yield row("sampling", f"B{num_rows} {what}, {name}", calls, least)


# ---- all of it -----------------------------------------------------------------------------


def row(family: str, what: str, calls: Sequence[Callable[[], object]], least: float) -> Row:
    return Row(family=family, what=what, time=seconds(calls) * 1e6, least=least * 1e6)


FAMILIES = {f.__name__: f for f in (attention, attention_input, elementwise, linear, sampling)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(FAMILIES), help="families, by comma")
    parser.add_argument("--json", type=Path, help="where the rows go as well")
    arguments = parser.parse_args()
    platform = CudaPlatform()
    answer = platform.probe()
    assert isinstance(answer, list), answer
    print(answer[0])
    device = platform.open(answer[0])
    print(dict(device.versions()))
    best = measure_ceilings()
    print(f"ceilings: {best.bandwidth / 1e12:.2f} TB/s, {best.matmul / 1e12:.0f} TFLOP/s")
    print(f"{'':16} {'microseconds':44} {'measured':>9} {'least':>9} {'share':>6}")
    kernels = Kernels(platform.kernels(answer[0]))
    rows = []
    for family in arguments.only.split(","):
        try:
            for found in FAMILIES[family](kernels, best):
                print(found, flush=True)
                rows.append(asdict(found))
        except Exception:  # one family's failure must not cost the others' measurements
            traceback.print_exc()
        torch.cuda.empty_cache()
    if arguments.json:
        report = {"device": answer[0].name, "ceilings": asdict(best), "rows": rows}
        arguments.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    with torch.inference_mode():
        main()
