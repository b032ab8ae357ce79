"""Gemma 1: Llama's block with wide heads, a gated GELU, norms of weight 1 + w, scaled embeddings.

Source: Gemma Team, arXiv:2403.08295.
"""

from __future__ import annotations

from dataclasses import replace

from allmetal_models.config import HFConfig, decoder_config
from allmetal_models.context import BuildContext
from allmetal_models.defaults import complete
from allmetal_models.layers.attention import Attention
from allmetal_models.layers.blocks import PreNormBlock
from allmetal_models.layers.decoder import Decoder, assemble
from allmetal_models.layers.embedding import root_scale
from allmetal_models.layers.mlp import GatedMLP
from allmetal_models.layers.norm import AddRMSNorm, Norm
from allmetal_models.layers.rope import rotary
from allmetal_models.layers.scope import Scope
from allmetal_models.rope_config import rope_config


def build(hf: HFConfig, ctx: BuildContext) -> Decoder:
    hf = complete(hf)
    c = decoder_config(hf)
    if c.activation == "gelu":  # So the first configs say, and mean its tanh form.
        c = replace(c, activation="gelu_tanh")
    rope = rotary(ctx, rope_config(hf, c.head_dim))
    norm = Norm(dim=c.hidden_size, eps=c.norm_eps, offset=1.0)
    bias = bool(hf.get("attention_bias", False))

    def block(at: Scope, index: int) -> PreNormBlock:
        return PreNormBlock(
            attention_norm=AddRMSNorm(at / "input_layernorm", norm, first=index == 0),
            attention=Attention(at / "self_attn", c, rope=rope, qkv_bias=bias, out_bias=bias),
            mlp_norm=AddRMSNorm(at / "post_attention_layernorm", norm),
            mlp=GatedMLP(at / "mlp", c),
        )

    return assemble(ctx, c, block, norm, embed_scale=root_scale(c, ctx))
