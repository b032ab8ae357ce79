"""Compile kernels, as the usual models have them, for GPUs that need not be here.

Usage: compile_all.py [--hot] BACKEND:ARCH ..., for instance `cuda:90 hip:gfx942`.  Prints as JSON
what each kernel takes on each, cut as the platform of that backend cuts it.  `--hot`: those alone
that a decode step of a usual model launches.  A program of its own, since a process either
interprets kernels or compiles them.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from importlib import import_module

import torch

from allmetal.platform.contract import AnyKernel, DeviceInfo, Spec, Supported
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
from allmetal_triton.compile_only import compiling_for
from allmetal_triton.kernels import kernels

DTYPE = "bfloat16"
PLATFORMS = {"cuda": ("allmetal_cuda", "sm_{}"), "hip": ("allmetal_rocm", "{}")}
LLAMA = AttentionSpec(
    dtype=DTYPE,
    kv_dtype=DTYPE,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    block_size=16,
    scale=128**-0.5,
)
ATTENTIONS = [
    LLAMA,
    replace(LLAMA, head_dim=64),
    replace(LLAMA, head_dim=256, num_heads=8, num_kv_heads=4, window=512, soft_cap=50.0),
    replace(LLAMA, head_dim=64, num_heads=64, window=128, sinks=True),
    replace(LLAMA, head_dim=512, num_heads=16, num_kv_heads=2),
    replace(LLAMA, block_size=64),
    replace(LLAMA, kv_dtype="float8_e4m3fn"),
]
INPUTS = [
    AttentionInputSpec(
        dtype=DTYPE,
        kv_dtype=DTYPE,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        block_size=16,
        kv_layout="nhd",
        rotary_dim=128,
        qk_norm=norm,
        interleaved=interleaved,
    )
    for norm, interleaved in (("none", False), ("head", False), ("full", False), ("none", True))
]
INPUTS.append(replace(INPUTS[0], kv_dtype="float8_e4m3fn"))


def compile_attention(spec: AttentionSpec, offered) -> None:  # type: ignore[no-untyped-def]
    """A decode step and one with a prompt."""
    op = offered["attention"][0].build(spec)
    dtype, kept = getattr(torch, spec.dtype), getattr(torch, spec.kv_dtype)
    sinks = torch.zeros(spec.num_heads) if spec.sinks else None
    for lens in ([1, 1], [1, 300]):
        paged = paged_batch(lens, [400, 400], spec.block_size, generator=torch.Generator())
        cache = torch.zeros(op.cache_shape(paged.num_blocks), dtype=kept)
        q = torch.zeros(sum(lens), spec.num_heads, spec.head_dim, dtype=dtype)
        op(q, cache, paged.attention, sinks)


def compile_input(spec: AttentionInputSpec, offered) -> None:  # type: ignore[no-untyped-def]
    """Few tokens and many."""
    op = offered["attention_input"][0].build(spec)
    dtype, heads = getattr(torch, spec.dtype), spec.num_heads + 2 * spec.num_kv_heads
    kept, shape = getattr(torch, spec.kv_dtype), (spec.num_kv_heads, spec.head_dim)
    cache = torch.zeros(32, 2, spec.block_size, *shape, dtype=kept)
    each = {"none": 0, "head": 1, "full": spec.num_heads}[spec.qk_norm]
    weight = torch.zeros(each * spec.head_dim, dtype=dtype) if each else None
    for num_tokens in (1, 300):
        qkv = torch.zeros(num_tokens, heads * spec.head_dim, dtype=dtype)
        at = torch.arange(num_tokens)
        op(qkv, at, torch.zeros(300, spec.rotary_dim), cache, at, weight, weight)


def compile_the_rest(offered) -> None:  # type: ignore[no-untyped-def]
    dtype = getattr(torch, DTYPE)
    for dim in (1024, 4096, 8192):
        norm = RMSNormSpec(dtype=DTYPE, dim=dim, eps=1e-6, residual=True)
        x = torch.zeros(2, dim, dtype=dtype)
        offered["rms_norm"][0].build(norm)(x, x[0], x)
    for activation in ("silu", "gelu", "gelu_tanh", "relu"):
        gate = GatedActivationSpec(dtype=DTYPE, dim=3072, activation=activation)
        offered["gated_activation"][0].build(gate)(torch.zeros(2, 2 * 3072, dtype=dtype))
    state = offered["decode_state"][0].build(DecodeStateSpec(block_size=16))
    words, tokens = torch.zeros(3, 2, dtype=torch.int64), torch.zeros(3, 4096, dtype=torch.int32)
    token_ids, *_ = state.read(words, tokens, tokens[None, :, :256].contiguous())
    state.write(words, tokens, token_ids)
    spec = LinearSpec(
        dtype=DTYPE,
        in_features=4096,
        out_features=6144,
        bias=True,
        weight=DenseWeight(dtype=DTYPE),
    )
    op = offered["linear"][0].build(spec)
    packed = op.pack({"weight": torch.zeros(6144, 4096, dtype=dtype)})
    for num_tokens in (1, 2):
        op(torch.zeros(num_tokens, 4096, dtype=dtype), packed, torch.zeros(6144, dtype=dtype))
    op = offered["sampling"][0].build(SamplingSpec(vocab_size=151_936))
    logits, ones = torch.zeros(2, 151_936), torch.ones(2)
    op(logits, None, None, None, None, None)
    op(logits, ones, None, None, None, ones)
    op(logits, ones, None, None, ones, ones)
    op(logits, ones, torch.ones(2, dtype=torch.int32), ones, ones, ones)


def compile_ints(offered) -> None:  # type: ignore[no-untyped-def]
    """Few tokens, some, and many."""
    weights = (
        IntWeight(),
        IntWeight(group_size=128),
        IntWeight(bits=4, group_size=128),
        IntWeight(act_dtype="int8"),
    )
    (kernel,) = (k for k in offered["linear"] if k.name == "triton_int_linear")
    for weight in weights:
        spec = LinearSpec(
            dtype=DTYPE, in_features=4096, out_features=1024, bias=False, weight=weight
        )
        op = kernel.build(spec)
        scale = torch.ones(1024, 4096 // (weight.group_size or 4096))
        packed = op.pack({"weight": torch.zeros(1024, 4096, dtype=torch.int8), "scale": scale})
        for num_tokens in (1, 100, 400):
            op(torch.zeros(num_tokens, 4096, dtype=getattr(torch, DTYPE)), packed, None)


def compile_moe(offered) -> None:  # type: ignore[no-untyped-def]
    """Few tokens, some, and many."""
    dense = DenseWeight(dtype=DTYPE)
    spec = MoESpec(
        dtype=DTYPE,
        num_experts=16,
        hidden_size=2048,
        intermediate_size=768,
        activation="silu",
        routing=Routing(top_k=8),
        gate_up=dense,
        down=dense,
    )
    op, dtype = offered["moe"][0].build(spec), getattr(torch, DTYPE)
    packed = op.pack(
        {"weight": torch.zeros(16, 1536, 2048, dtype=dtype)},
        {"weight": torch.zeros(16, 2048, 768, dtype=dtype)},
    )
    for num_tokens in (2, 100, 400):
        op(torch.zeros(num_tokens, 2048, dtype=dtype), torch.zeros(num_tokens, 16), packed)


def compile_hot(offered) -> None:  # type: ignore[no-untyped-def]
    compile_attention(LLAMA, offered)
    compile_input(INPUTS[0], offered)
    dtype = getattr(torch, DTYPE)
    x = torch.zeros(2, 4096, dtype=dtype)
    norm = RMSNormSpec(dtype=DTYPE, dim=4096, eps=1e-6, residual=True)
    offered["rms_norm"][0].build(norm)(x, x[0], x)
    gate = GatedActivationSpec(dtype=DTYPE, dim=2048, activation="silu")
    offered["gated_activation"][0].build(gate)(x)
    spec = LinearSpec(
        dtype=DTYPE,
        in_features=4096,
        out_features=6144,
        bias=False,
        weight=DenseWeight(dtype=DTYPE),
    )
    op = offered["linear"][0].build(spec)
    op(x[:1], op.pack({"weight": torch.zeros(6144, 4096, dtype=dtype)}), None)
    op, logits, ones = (
        offered["sampling"][0].build(SamplingSpec(vocab_size=151_936)),
        torch.zeros(2, 151_936),
        torch.ones(2),
    )
    op(logits, ones, torch.ones(2, dtype=torch.int32), ones, ones, ones)


def compile_everything(offered) -> None:  # type: ignore[no-untyped-def]
    for attention in ATTENTIONS:
        if taken(offered["attention"][0], attention):
            compile_attention(attention, offered)
    for given in INPUTS:
        if taken(offered["attention_input"][0], given):
            compile_input(given, offered)
    compile_the_rest(offered)
    compile_ints(offered)
    compile_moe(offered)


def taken(kernel: AnyKernel, spec: Spec) -> bool:
    """Some devices have no 8-bit formats."""
    return isinstance(kernel.supports(spec), Supported)


def main() -> None:
    hot, names = "--hot" in sys.argv, [name for name in sys.argv[1:] if name != "--hot"]
    found = {}
    for name in names:
        backend, number = name.split(":")
        package, spelled = PLATFORMS[backend]
        arch = int(number) if number.isdigit() else number
        info = DeviceInfo(index=0, name=name, total_memory=0, arch=spelled.format(number))
        target = import_module(f"{package}.kernels").target(info)
        offered = kernels(replace(target, num_cores=lambda: 100))
        with compiling_for(backend, arch) as usages:
            (compile_hot if hot else compile_everything)(offered)
        found[name] = [asdict(usage) for usage in usages]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
