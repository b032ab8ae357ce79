"""OLMo 2 and 3: norms after each branch, and one over all heads of queries and of keys.

OLMo 3 gives three of four layers a window, and scales the rotary embedding of the fourth only.
Sources: arXiv:2501.00656, arXiv:2512.13961.
"""

from __future__ import annotations

from allmetal_models.config import HFConfig, decoder_config, every_nth_full, layer_windows
from allmetal_models.context import BuildContext
from allmetal_models.defaults import complete
from allmetal_models.layers.attention import Attention
from allmetal_models.layers.blocks import PostNormBlock
from allmetal_models.layers.decoder import Decoder, assemble
from allmetal_models.layers.mlp import GatedMLP
from allmetal_models.layers.norm import Norm, RMSNorm
from allmetal_models.layers.rope import rotary
from allmetal_models.layers.scope import Scope
from allmetal_models.rope_config import rope_config


def build(hf: HFConfig, ctx: BuildContext) -> Decoder:
    hf = complete(hf)
    c = decoder_config(hf)
    third = hf["model_type"] == "olmo3"
    kinds = every_nth_full(hf, c.num_layers) if third else ["full_attention"] * c.num_layers
    windows = layer_windows(kinds, hf.get("sliding_window"))
    theta = 500_000.0 if third else 10_000.0
    rope = {
        kind: rotary(ctx, rope_config(hf, c.head_dim, layer_type=kind, default_theta=theta))
        for kind in set(kinds)
    }
    norm = Norm(dim=c.hidden_size, eps=c.norm_eps)
    bias = bool(hf.get("attention_bias", False))

    def block(at: Scope, index: int) -> PostNormBlock:
        return PostNormBlock(
            attention=Attention(
                at / "self_attn",
                c,
                rope=rope[kinds[index]],
                window=windows[index],
                qkv_bias=bias,
                out_bias=bias,
                qk_norm="full",
                norm=norm,
            ),
            attention_out_norm=RMSNorm(at / "post_attention_layernorm", norm),
            mlp=GatedMLP(at / "mlp", c),
            mlp_out_norm=RMSNorm(at / "post_feedforward_layernorm", norm),
        )

    return assemble(ctx, c, block, norm, post_norm=True)
