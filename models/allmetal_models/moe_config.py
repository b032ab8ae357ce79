"""The part of a config.json that says which layers have experts, and how large.  No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from allmetal.errors import CheckpointError
from allmetal_models.config import HFConfig, count

_NUM_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True, slots=True, kw_only=True)
class MoEConfig:
    """Sizes under one set of names.  `shared_size`: channels of what every token goes through
    beside its experts, 0 for none.  `sparse`: for each layer, whether it has experts."""

    num_experts: int
    top_k: int
    intermediate_size: int
    shared_size: int
    sparse: tuple[bool, ...]


def moe_config(hf: HFConfig) -> MoEConfig | None:
    """None for a model without experts.  CheckpointError names a field that does not fit."""
    name = next((name for name in _NUM_EXPERTS if hf.get(name)), None)
    if name is None:
        return None
    num_experts = count(name, hf[name])
    top_k = count("num_experts_per_tok", hf.get("num_experts_per_tok"))
    if top_k > num_experts:
        raise CheckpointError(
            f"config.json: num_experts_per_tok is {top_k}, of {num_experts} experts",
            hint="download the model's config.json again",
        )
    size_name = "moe_intermediate_size" if hf.get("moe_intermediate_size") else "intermediate_size"
    size = count(size_name, hf.get(size_name))
    num_layers = count("num_hidden_layers", hf.get("num_hidden_layers"))
    return MoEConfig(
        num_experts=num_experts,
        top_k=top_k,
        intermediate_size=size,
        shared_size=int(hf.get("shared_expert_intermediate_size") or 0)
        or size * int(hf.get("n_shared_experts") or 0),
        sparse=tuple(_is_sparse(hf, layer) for layer in range(num_layers)),
    )


def need_moe_config(hf: HFConfig) -> MoEConfig:
    """Of a family that is nothing without experts."""
    config = moe_config(hf)
    if config is None:
        raise CheckpointError(
            f"config.json of this {hf.get('model_type', 'model')} has no number of experts",
            hint="download the model's config.json again",
        )
    return config


def _is_sparse(hf: HFConfig, layer: int) -> bool:
    """Every `decoder_sparse_step`-th layer from `first_k_dense_replace` on, unless it is listed."""
    step = int(hf.get("decoder_sparse_step") or 1)
    return (
        layer >= int(hf.get("first_k_dense_replace") or 0)
        and (layer + 1) % step == 0
        and layer not in (hf.get("mlp_only_layers") or ())
    )
