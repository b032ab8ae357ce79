"""Granite 3, dense: Llama's block with multipliers on embeddings, scores, branches and logits.

Source: github.com/ibm-granite/granite-3.0-language-models, the technical report.
"""

from __future__ import annotations

from allmetal_models.config import HFConfig, decoder_config
from allmetal_models.context import BuildContext
from allmetal_models.defaults import complete
from allmetal_models.layers.attention import Attention
from allmetal_models.layers.blocks import PreNormBlock
from allmetal_models.layers.decoder import Decoder, assemble
from allmetal_models.layers.mlp import GatedMLP
from allmetal_models.layers.norm import AddRMSNorm, Norm
from allmetal_models.layers.rope import rotary
from allmetal_models.layers.scope import Scope
from allmetal_models.rope_config import rope_config


def build(hf: HFConfig, ctx: BuildContext) -> Decoder:
    hf = complete(hf)
    c = decoder_config(hf)
    rope = rotary(ctx, rope_config(hf, c.head_dim))
    norm = Norm(dim=c.hidden_size, eps=c.norm_eps, cast_before_weight=True)
    bias = bool(hf.get("attention_bias", False))

    def block(at: Scope, index: int) -> PreNormBlock:
        return PreNormBlock(
            attention_norm=AddRMSNorm(at / "input_layernorm", norm, first=index == 0),
            attention=Attention(
                at / "self_attn",
                c,
                rope=rope,
                scale=float(hf["attention_multiplier"]),
                qkv_bias=bias,
                out_bias=bias,
            ),
            mlp_norm=AddRMSNorm(at / "post_attention_layernorm", norm),
            mlp=GatedMLP(at / "mlp", c, bias=bool(hf.get("mlp_bias", False))),
            branch_scale=float(hf["residual_multiplier"]),
        )

    return assemble(
        ctx,
        c,
        block,
        norm,
        embed_scale=float(hf["embedding_multiplier"]),
        logit_scale=1.0 / float(hf["logits_scaling"]),
    )
