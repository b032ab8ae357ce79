"""What a GGUF file says of routed experts, in Hugging Face's words.

Source: llama.cpp's hparams.  Whether the chosen scores are made to sum to one is fixed there for
each architecture; files do not say it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from allmetal.checkpoint.gguf.hf_config import Facts

SPARSE = frozenset({"llama", "qwen3moe", "olmoe"})
"""Architectures that are read with experts; "llama" with them is Mixtral."""


def expert_fields(facts: Facts, *, renormalize: bool | None = None) -> dict[str, Any]:
    """`renormalize` None: the family has no setting for it."""
    fields: dict[str, Any] = {
        "num_experts": facts.number("expert_count"),
        "num_experts_per_tok": facts.number("expert_used_count"),
    }
    if facts.get("expert_feed_forward_length") is not None:
        fields["moe_intermediate_size"] = facts.number("expert_feed_forward_length")
    if renormalize is not None:
        fields["norm_topk_prob"] = renormalize
    return fields


def mixtral(facts: Facts) -> dict[str, Any]:
    fields = expert_fields(facts)
    return {
        "model_type": "mixtral",
        "architectures": ["MixtralForCausalLM"],
        "hidden_act": "silu",
        "sliding_window": None,
        "num_local_experts": fields.pop("num_experts"),
        **fields,
    }


def qwen3_moe(facts: Facts) -> dict[str, Any]:
    return {
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "hidden_act": "silu",
        "use_sliding_window": False,
        **expert_fields(facts, renormalize=True),
    }


def olmoe(facts: Facts) -> dict[str, Any]:
    return {
        "model_type": "olmoe",
        "architectures": ["OlmoeForCausalLM"],
        "hidden_act": "silu",
        **expert_fields(facts, renormalize=False),
    }
