"""Phi 3 and 4-mini: Llama's block; projections are fused in the checkpoint; longrope.

Source: arXiv:2404.14219.
"""

from __future__ import annotations

from dataclasses import replace

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
from allmetal_models.rope_config import RopeConfig, rope_config


def build(hf: HFConfig, ctx: BuildContext) -> Decoder:
    hf = complete(hf)
    c = decoder_config(hf)
    rope = rotary(ctx, _rope(hf, c.head_dim))
    norm = Norm(dim=c.hidden_size, eps=c.norm_eps, cast_before_weight=True)

    def block(at: Scope, index: int) -> PreNormBlock:
        return PreNormBlock(
            attention_norm=AddRMSNorm(at / "input_layernorm", norm, first=index == 0),
            attention=Attention(
                at / "self_attn", c, rope=rope, window=hf.get("sliding_window"), fused="qkv_proj"
            ),
            mlp_norm=AddRMSNorm(at / "post_attention_layernorm", norm),
            mlp=GatedMLP(at / "mlp", c, fused="gate_up_proj"),
        )

    return assemble(ctx, c, block, norm)


def _rope(hf: HFConfig, head_dim: int) -> RopeConfig:
    rope = rope_config(hf, head_dim)
    # The first files say yarn, with the lists of factors that only longrope has.
    return replace(rope, kind="longrope") if rope.kind == "yarn" else rope
