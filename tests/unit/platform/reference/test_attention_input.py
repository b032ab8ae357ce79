"""The reference attention input against transformers' own rotary embedding and norms."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.glm.modeling_glm import apply_rotary_pos_emb as rotate_interleaved
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as rotate_halves
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from allmetal.platform.contract import Unsupported
from allmetal.platform.reference import kernels
from allmetal.platform.specs import AttentionInputSpec

(KERNEL,) = kernels()["attention_input"]
H, K, D, T, BLOCK = 4, 2, 16, 9, 4
SPEC = AttentionInputSpec(
    dtype="float32",
    kv_dtype="float32",
    num_heads=H,
    num_kv_heads=K,
    head_dim=D,
    block_size=BLOCK,
    kv_layout="nhd",
    rotary_dim=D,
)


@pytest.fixture
def qkv() -> torch.Tensor:
    torch.set_num_threads(1)
    return torch.randn(T, (H + 2 * K) * D)


def angles(rotary_dim: int, length: int = 64) -> torch.Tensor:
    """[length, rotary_dim / 2], base 10000."""
    speeds = 10000 ** -(torch.arange(0, rotary_dim, 2).double() / rotary_dim)
    return torch.arange(length).double()[:, None] * speeds


def table(rotary_dim: int) -> torch.Tensor:
    a = angles(rotary_dim)
    return torch.cat([a.cos(), a.sin()], dim=-1).float()


def run(
    spec: AttentionInputSpec,
    qkv: torch.Tensor,
    positions: torch.Tensor,
    *weights: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(q, k, v), the latter two read back from a cache of shuffled slots, token by token."""
    slots = torch.randperm(5 * BLOCK)[: len(qkv)]
    axes = (BLOCK, K) if spec.kv_layout == "nhd" else (K, BLOCK)
    cache = torch.full((5, 2, *axes, D), -7.0, dtype=getattr(torch, spec.kv_dtype))
    q = KERNEL.build(spec)(qkv, positions, table(max(spec.rotary_dim, 2)), cache, slots, *weights)
    assert q.is_contiguous()
    plain = cache if spec.kv_layout == "nhd" else cache.transpose(2, 3)
    kv = [plain[s // BLOCK, :, s % BLOCK] for s in slots.tolist()]
    assert (plain == -7).all((1, 3, 4)).sum() == 5 * BLOCK - len(qkv)  # nothing else was written
    k, v = torch.stack(kv).unbind(1) if kv else (qkv.new_empty(0, K, D),) * 2
    return q, k, v


def split(qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k, v = qkv.view(T, -1, D).split([H, K, K], dim=1)
    return q, k, v


@pytest.mark.parametrize("kv_layout", ["nhd", "hnd"])
@pytest.mark.parametrize("rotary_dim", [D, D // 2])
def test_rotates_halves_as_llama_does(qkv: torch.Tensor, kv_layout: str, rotary_dim: int) -> None:
    positions = torch.randint(0, 64, (T,))
    q, k, v = split(qkv)
    a = angles(rotary_dim)[positions].repeat(1, 2).float()
    r = rotary_dim
    turned = rotate_halves(
        q[None, ..., :r].transpose(1, 2), k[None, ..., :r].transpose(1, 2), a.cos()[None],
        a.sin()[None],
    )  # fmt: skip
    q_r, k_r = (x[0].transpose(0, 1) for x in turned)
    spec = replace(SPEC, kv_layout=kv_layout, rotary_dim=rotary_dim)
    got_q, got_k, got_v = run(spec, qkv, positions)
    torch.testing.assert_close(got_q, torch.cat([q_r, q[..., r:]], dim=-1))
    torch.testing.assert_close(got_k, torch.cat([k_r, k[..., r:]], dim=-1))
    assert torch.equal(got_v, v)


def test_rotates_neighbours_as_glm_does(qkv: torch.Tensor) -> None:
    positions = torch.randint(0, 64, (T,))
    q, k, v = split(qkv)
    a = angles(D)[positions].repeat(1, 2).float()
    turned = rotate_interleaved(
        q[None].transpose(1, 2), k[None].transpose(1, 2), a.cos()[None], a.sin()[None]
    )
    got_q, got_k, got_v = run(replace(SPEC, interleaved=True), qkv, positions)
    torch.testing.assert_close(got_q, turned[0][0].transpose(0, 1))
    torch.testing.assert_close(got_k, turned[1][0].transpose(0, 1))
    assert torch.equal(got_v, v)


@pytest.mark.parametrize(("norm", "offset"), [(Qwen3RMSNorm, 0.0), (Gemma3RMSNorm, 1.0)])
def test_norms_each_head_before_rotation(
    qkv: torch.Tensor, norm: type[torch.nn.Module], offset: float
) -> None:
    q_norm, k_norm = norm(D, 1e-5), norm(D, 1e-5)
    for module in (q_norm, k_norm):
        torch.nn.init.normal_(module.weight)
    spec = replace(SPEC, qk_norm="head", norm_eps=1e-5, norm_offset=offset, rotary_dim=0)
    with torch.no_grad():
        got = run(spec, qkv, torch.zeros(T, dtype=torch.int64), q_norm.weight, k_norm.weight)
        q, k, _ = split(qkv)
        torch.testing.assert_close(got[0], q_norm(q))
        torch.testing.assert_close(got[1], k_norm(k))


def test_norms_all_heads_as_one_vector(qkv: torch.Tensor) -> None:
    weights = torch.randn(H * D), torch.randn(K * D)
    spec = replace(SPEC, qk_norm="full", rotary_dim=0)
    got = run(spec, qkv, torch.zeros(T, dtype=torch.int64), *weights)
    for out, x, weight in zip(got, split(qkv), weights, strict=False):
        expected = torch.nn.functional.rms_norm(x.flatten(1), [weight.numel()], weight, 1e-6)
        torch.testing.assert_close(out.flatten(1), expected)


def test_writes_every_dtype_and_no_tokens(qkv: torch.Tensor) -> None:
    spec = replace(SPEC, dtype="bfloat16", kv_dtype="bfloat16", rotary_dim=0)
    nowhere = torch.zeros(T, dtype=torch.int64)
    q, k, v = run(spec, qkv.bfloat16(), nowhere)
    assert torch.equal(torch.cat([q, k, v], dim=1).flatten(1), qkv.bfloat16())
    assert run(spec, qkv.bfloat16()[:0], nowhere[:0])[0].shape == (0, H, D)


def test_refusals_say_why() -> None:
    for change, why in (
        ({"kv_layout": "blocked"}, "kv_layout"),
        ({"rotary_dim": 5}, "even"),
        ({"rotary_dim": 32}, "at most 16"),
        ({"kv_dtype": "int8"}, "scales"),
    ):
        answer = KERNEL.supports(replace(SPEC, **change))
        assert isinstance(answer, Unsupported)
        assert why in answer.reason
