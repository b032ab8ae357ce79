"""GGUF's tensor names to Hugging Face's, and what llama.cpp's converter did to the values.

Source: gguf-py's tensor_mapping.py and the classes of convert_hf_to_gguf.py.  Two conversions are
undone when a tensor is read: families whose rotary embedding runs over neighbouring channels in
llama.cpp have the rows of q and k reordered to pairs, and Gemma's norm weights are stored plus 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

PAIRED = frozenset({"llama", "granite", "smollm3"})
"""Architectures whose converter derives from LlamaModel and reorders q and k."""

SHIFTED_NORMS = frozenset({"gemma", "gemma2", "gemma3"})

IGNORED = re.compile(
    r"rope_freqs\.weight|rope_factors_(long|short)\.weight|.*\.attn_rot_embd(\..*)?"
)
"""Facts about the rotary embedding that the config states."""

EXPERT = "{expert}"
"""Stands for an expert's number in the name of a tensor that holds all, one after another."""

_TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}

_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": f"mlp.experts.{EXPERT}.gate_proj",
    "ffn_up_exps": f"mlp.experts.{EXPERT}.up_proj",
    "ffn_down_exps": f"mlp.experts.{EXPERT}.down_proj",
}

_FUSED_UP = {"ffn_up": "mlp.gate_up_proj"}
_NORMS_ON_BOTH_SIDES = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}

_FAMILY: Mapping[str, Mapping[str, str]] = {
    "gemma2": _NORMS_ON_BOTH_SIDES,
    "gemma3": _NORMS_ON_BOTH_SIDES,
    "glm4": {
        **_FUSED_UP,
        "post_attention_norm": "post_self_attn_layernorm",
        "post_ffw_norm": "post_mlp_layernorm",
    },
    "llama": {
        "ffn_gate_inp": "block_sparse_moe.gate",
        "ffn_gate_exps": f"block_sparse_moe.experts.{EXPERT}.w1",
        "ffn_up_exps": f"block_sparse_moe.experts.{EXPERT}.w3",
        "ffn_down_exps": f"block_sparse_moe.experts.{EXPERT}.w2",
    },
    "gemma": {},
    "granite": {},
    "olmo2": {
        "post_attention_norm": "post_attention_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
    "olmoe": {},
    "phi3": _FUSED_UP,
    "qwen2": {},
    "qwen3": {},
    "qwen3moe": {},
    "smollm3": {},
}
"""Where a family's layers differ from the common names."""

_BLOCK_NAME = re.compile(r"blk\.(\d+)\.(.+)\.(weight|bias)")
_TOP_NAME = re.compile(r"(.+)\.(weight|bias)")


@dataclass(frozen=True, slots=True)
class Source:
    """Hugging Face's name, with `EXPERT` in it where it is one a matrix, and what to undo (as in
    TensorInfo)."""

    name: str
    paired_heads: int = 0
    shift: float = 0.0


def to_hugging_face(
    name: str, architecture: str, *, num_heads: int, num_kv_heads: int
) -> Source | None:
    """None for a name that no model of this architecture has."""
    if match := _BLOCK_NAME.fullmatch(name):
        layer, part, kind = match.groups()
        target = {**_BLOCK, **_FAMILY[architecture]}.get(part)
        if target is None:
            return None
        heads = {"attn_q": num_heads, "attn_k": num_kv_heads}.get(part, 0)
        return Source(
            f"model.layers.{layer}.{target}.{kind}",
            paired_heads=heads if architecture in PAIRED else 0,
            shift=_shift(part, architecture),
        )
    match = _TOP_NAME.fullmatch(name)
    if match is None or match[1] not in _TOP:
        return None
    return Source(f"{_TOP[match[1]]}.{match[2]}", shift=_shift(match[1], architecture))


def _shift(part: str, architecture: str) -> float:
    return -1.0 if architecture in SHIFTED_NORMS and part.endswith("norm") else 0.0
