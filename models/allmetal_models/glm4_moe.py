"""GLM-4.5 to 4.7: experts chosen by sigmoid scores with a learned correction, and shared ones.

Source: arXiv:2508.06471.
"""

from __future__ import annotations

import torch

from allmetal.platform.specs import Routing
from allmetal_models.config import DecoderConfig, HFConfig, decoder_config
from allmetal_models.context import BuildContext
from allmetal_models.defaults import complete
from allmetal_models.layers.attention import Attention
from allmetal_models.layers.blocks import PreNormBlock
from allmetal_models.layers.decoder import Decoder, assemble
from allmetal_models.layers.experts import Experts
from allmetal_models.layers.mlp import GatedMLP
from allmetal_models.layers.norm import AddRMSNorm, Norm
from allmetal_models.layers.rope import rotary
from allmetal_models.layers.scope import Scope
from allmetal_models.moe_config import MoEConfig, need_moe_config
from allmetal_models.rope_config import rope_config


def build(hf: HFConfig, ctx: BuildContext) -> Decoder:
    hf = complete(hf)
    c, moe = decoder_config(hf), need_moe_config(hf)
    rope = rotary(ctx, rope_config(hf, c.head_dim, default_partial=0.5))
    norm = Norm(dim=c.hidden_size, eps=c.norm_eps, cast_before_weight=True)
    routing = Routing(
        top_k=moe.top_k,
        scoring="sigmoid",
        renormalize=bool(hf["norm_topk_prob"]),
        correction=True,
        num_groups=int(hf["n_group"]),
        top_groups=int(hf["topk_group"]),
        scale=float(hf["routed_scaling_factor"]),
    )

    def block(at: Scope, index: int) -> PreNormBlock:
        place = at / "mlp"
        return PreNormBlock(
            attention_norm=AddRMSNorm(at / "input_layernorm", norm, first=index == 0),
            attention=Attention(
                at / "self_attn",
                c,
                rope=rope,
                qkv_bias=bool(hf["attention_bias"]),
                qk_norm="head" if hf["use_qk_norm"] else "none",
                norm=norm,
            ),
            mlp_norm=AddRMSNorm(at / "post_attention_layernorm", norm),
            mlp=_Shared(place, c, moe, routing) if moe.sparse[index] else GatedMLP(place, c),
        )

    # The layers after the last predict more than one token at once; nothing here asks them to.
    extra = rf"^model\.layers\.{c.num_layers}\."
    return assemble(ctx, c, block, norm, ignored=extra)


class _Shared:
    """experts(x) + shared(x), x [T, C]."""

    def __init__(self, at: Scope, config: DecoderConfig, moe: MoEConfig, routing: Routing) -> None:
        self._experts = Experts(at, config, moe, routing, router_dtype="float32")
        self._shared = GatedMLP(at / "shared_experts", config, inner=moe.shared_size)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._experts(x) + self._shared(x)
