"""Mixtral: Mistral's block with routed experts.  Source: arXiv:2401.04088."""

from __future__ import annotations

from allmetal.platform.specs import Routing
from allmetal_models.config import HFConfig, decoder_config
from allmetal_models.context import BuildContext
from allmetal_models.defaults import complete
from allmetal_models.layers.attention import Attention
from allmetal_models.layers.blocks import PreNormBlock
from allmetal_models.layers.decoder import Decoder, assemble
from allmetal_models.layers.experts import ExpertNames, Experts
from allmetal_models.layers.norm import AddRMSNorm, Norm
from allmetal_models.layers.rope import rotary
from allmetal_models.layers.scope import Scope
from allmetal_models.moe_config import need_moe_config
from allmetal_models.rope_config import rope_config


def build(hf: HFConfig, ctx: BuildContext) -> Decoder:
    hf = complete(hf)
    c, moe = decoder_config(hf), need_moe_config(hf)
    rope = rotary(ctx, rope_config(hf, c.head_dim, default_theta=1e6))
    norm = Norm(dim=c.hidden_size, eps=c.norm_eps, cast_before_weight=True)
    routing, names = Routing(top_k=moe.top_k), ExpertNames(gate="w1", up="w3", down="w2")

    def block(at: Scope, index: int) -> PreNormBlock:
        return PreNormBlock(
            attention_norm=AddRMSNorm(at / "input_layernorm", norm, first=index == 0),
            attention=Attention(at / "self_attn", c, rope=rope, window=hf.get("sliding_window")),
            mlp_norm=AddRMSNorm(at / "post_attention_layernorm", norm),
            mlp=Experts(at / "block_sparse_moe", c, moe, routing, names=names),
        )

    return assemble(ctx, c, block, norm)
