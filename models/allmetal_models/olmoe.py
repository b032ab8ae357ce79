"""OLMoE: pre-norm blocks with a norm over all queries and keys, and routed experts.

Source: arXiv:2409.02060.
"""

from __future__ import annotations

from allmetal.errors import ModelError
from allmetal.platform.specs import Routing
from allmetal_models.config import HFConfig, decoder_config
from allmetal_models.context import BuildContext
from allmetal_models.defaults import complete
from allmetal_models.layers.attention import Attention
from allmetal_models.layers.blocks import PreNormBlock
from allmetal_models.layers.decoder import Decoder, assemble
from allmetal_models.layers.experts import Experts
from allmetal_models.layers.norm import AddRMSNorm, Norm
from allmetal_models.layers.rope import rotary
from allmetal_models.layers.scope import Scope
from allmetal_models.moe_config import need_moe_config
from allmetal_models.rope_config import rope_config


def build(hf: HFConfig, ctx: BuildContext) -> Decoder:
    hf = complete(hf)
    if hf.get("clip_qkv") is not None:
        raise ModelError(f"this OLMoE clips queries, keys and values at {hf['clip_qkv']}")
    c, moe = decoder_config(hf), need_moe_config(hf)
    rope = rotary(ctx, rope_config(hf, c.head_dim))
    norm = Norm(dim=c.hidden_size, eps=c.norm_eps, cast_before_weight=True)
    bias = bool(hf.get("attention_bias", False))
    routing = Routing(top_k=moe.top_k, renormalize=bool(hf.get("norm_topk_prob", False)))

    def block(at: Scope, index: int) -> PreNormBlock:
        return PreNormBlock(
            attention_norm=AddRMSNorm(at / "input_layernorm", norm, first=index == 0),
            attention=Attention(
                at / "self_attn",
                c,
                rope=rope,
                qkv_bias=bias,
                out_bias=bias,
                qk_norm="full",
                norm=norm,
            ),
            mlp_norm=AddRMSNorm(at / "post_attention_layernorm", norm),
            mlp=Experts(at / "mlp", c, moe, routing),
        )

    return assemble(ctx, c, block, norm)
