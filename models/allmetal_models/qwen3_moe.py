"""Qwen 3 with experts: Qwen 3's attention, and routed experts in most layers.

Source: arXiv:2505.09388.
"""

from __future__ import annotations

from allmetal.platform.specs import Routing
from allmetal_models.config import HFConfig, decoder_config
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
from allmetal_models.moe_config import need_moe_config
from allmetal_models.rope_config import rope_config


def build(hf: HFConfig, ctx: BuildContext) -> Decoder:
    hf = complete(hf)
    c, moe = decoder_config(hf), need_moe_config(hf)
    rope = rotary(ctx, rope_config(hf, c.head_dim))
    norm = Norm(dim=c.hidden_size, eps=c.norm_eps, cast_before_weight=True)
    window = hf.get("sliding_window") if hf.get("use_sliding_window") else None
    bias = bool(hf.get("attention_bias", False))
    routing = Routing(top_k=moe.top_k, renormalize=bool(hf["norm_topk_prob"]))

    def block(at: Scope, index: int) -> PreNormBlock:
        place = at / "mlp"
        return PreNormBlock(
            attention_norm=AddRMSNorm(at / "input_layernorm", norm, first=index == 0),
            attention=Attention(
                at / "self_attn",
                c,
                rope=rope,
                window=window,
                qkv_bias=bias,
                out_bias=bias,
                qk_norm="head",
                norm=norm,
            ),
            mlp_norm=AddRMSNorm(at / "post_attention_layernorm", norm),
            mlp=Experts(place, c, moe, routing) if moe.sparse[index] else GatedMLP(place, c),
        )

    return assemble(ctx, c, block, norm)
