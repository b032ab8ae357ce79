"""Qwen 1.5 and 2 with experts: beside the routed ones, one that every token goes through.

Source: arXiv:2407.10671.
"""

from __future__ import annotations

import torch

from allmetal.platform.specs import Routing
from allmetal_models.config import (
    DecoderConfig,
    HFConfig,
    decoder_config,
    last_layers_slide,
    layer_windows,
)
from allmetal_models.context import BuildContext
from allmetal_models.defaults import complete
from allmetal_models.layers.attention import Attention
from allmetal_models.layers.blocks import FeedForward, PreNormBlock
from allmetal_models.layers.decoder import Decoder, assemble
from allmetal_models.layers.experts import Experts, Router
from allmetal_models.layers.mlp import GatedMLP
from allmetal_models.layers.norm import AddRMSNorm, Norm
from allmetal_models.layers.rope import rotary
from allmetal_models.layers.scope import Scope
from allmetal_models.moe_config import MoEConfig, need_moe_config
from allmetal_models.rope_config import rope_config


def build(hf: HFConfig, ctx: BuildContext) -> Decoder:
    hf = complete(hf)
    c, moe = decoder_config(hf), need_moe_config(hf)
    rope = rotary(ctx, rope_config(hf, c.head_dim))
    norm = Norm(dim=c.hidden_size, eps=c.norm_eps, cast_before_weight=True)
    windows = layer_windows(last_layers_slide(hf, c.num_layers), hf["sliding_window"])
    routing = Routing(top_k=moe.top_k, renormalize=bool(hf.get("norm_topk_prob", False)))

    def feed_forward(at: Scope, index: int) -> FeedForward:
        if not moe.sparse[index]:
            return GatedMLP(at, c)
        return _GatedShare(at, c, moe, Experts(at, c, moe, routing))

    def block(at: Scope, index: int) -> PreNormBlock:
        return PreNormBlock(
            attention_norm=AddRMSNorm(at / "input_layernorm", norm, first=index == 0),
            attention=Attention(
                at / "self_attn",
                c,
                rope=rope,
                window=windows[index],
                qkv_bias=bool(hf["qkv_bias"]),
            ),
            mlp_norm=AddRMSNorm(at / "post_attention_layernorm", norm),
            mlp=feed_forward(at / "mlp", index),
        )

    return assemble(ctx, c, block, norm)


class _GatedShare:
    """experts(x) + sigmoid(gate(x)) * shared(x), x [T, C]."""

    def __init__(self, at: Scope, config: DecoderConfig, moe: MoEConfig, experts: Experts) -> None:
        self._experts = experts
        self._shared = GatedMLP(at / "shared_expert", config, inner=moe.shared_size)
        self._gate = Router(at / "shared_expert_gate", config.hidden_size, 1)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._experts(x) + self._gate(x).sigmoid() * self._shared(x)
