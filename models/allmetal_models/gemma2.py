"""Gemma 2: sandwich norms, every other layer with a window, soft caps on scores and logits.

Source: Gemma Team, arXiv:2408.00118.
"""

from __future__ import annotations

from allmetal_models.config import HFConfig, decoder_config, every_nth_full, layer_windows
from allmetal_models.context import BuildContext
from allmetal_models.defaults import complete
from allmetal_models.layers.attention import Attention
from allmetal_models.layers.blocks import SandwichBlock
from allmetal_models.layers.decoder import Decoder, assemble
from allmetal_models.layers.embedding import root_scale
from allmetal_models.layers.mlp import GatedMLP
from allmetal_models.layers.norm import AddRMSNorm, Norm, RMSNorm
from allmetal_models.layers.rope import rotary
from allmetal_models.layers.scope import Scope
from allmetal_models.rope_config import rope_config


def build(hf: HFConfig, ctx: BuildContext) -> Decoder:
    hf = complete(hf)
    c = decoder_config(hf)
    rope = rotary(ctx, rope_config(hf, c.head_dim))
    kinds = every_nth_full(hf, c.num_layers)
    windows = layer_windows(kinds, hf["sliding_window"])
    norm = Norm(dim=c.hidden_size, eps=c.norm_eps, offset=1.0)
    scale = hf["query_pre_attn_scalar"] ** -0.5
    bias = bool(hf.get("attention_bias", False))

    def block(at: Scope, index: int) -> SandwichBlock:
        return SandwichBlock(
            attention_norm=AddRMSNorm(at / "input_layernorm", norm, first=index == 0),
            attention=Attention(
                at / "self_attn",
                c,
                rope=rope,
                window=windows[index],
                scale=scale,
                soft_cap=hf["attn_logit_softcapping"],
                qkv_bias=bias,
                out_bias=bias,
            ),
            attention_out_norm=RMSNorm(at / "post_attention_layernorm", norm),
            mlp_norm=AddRMSNorm(at / "pre_feedforward_layernorm", norm),
            mlp=GatedMLP(at / "mlp", c),
            mlp_out_norm=RMSNorm(at / "post_feedforward_layernorm", norm),
        )

    return assemble(
        ctx,
        c,
        block,
        norm,
        embed_scale=root_scale(c, ctx),
        logit_soft_cap=hf["final_logit_softcapping"],
    )
