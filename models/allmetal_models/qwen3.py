"""Qwen 3, dense: Llama's block with a norm on each head's queries and keys.

Source: arXiv:2505.09388.
"""

from __future__ import annotations

from allmetal_models.config import HFConfig, decoder_config, last_layers_slide, layer_windows
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
    windows = layer_windows(last_layers_slide(hf, c.num_layers), hf["sliding_window"])
    bias = bool(hf.get("attention_bias", False))

    def block(at: Scope, index: int) -> PreNormBlock:
        return PreNormBlock(
            attention_norm=AddRMSNorm(at / "input_layernorm", norm, first=index == 0),
            attention=Attention(
                at / "self_attn",
                c,
                rope=rope,
                window=windows[index],
                qkv_bias=bias,
                out_bias=bias,
                qk_norm="head",
                norm=norm,
            ),
            mlp_norm=AddRMSNorm(at / "post_attention_layernorm", norm),
            mlp=GatedMLP(at / "mlp", c),
        )

    return assemble(ctx, c, block, norm)
