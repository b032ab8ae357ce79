"""OLMo 2 and 3: norms after each branch, and one over all heads of queries and of keys.

OLMo 3 gives three of four layers a window, and scales the rotary embedding of the fourth only.
Sources: arXiv:2501.00656, arXiv:2512.13961.
"""

from __future__ import annotations

from allmetal_models.config import HFConfig, decoder_config, layer_windows
from allmetal_models.context import BuildContext
from allmetal_models.layers.attention import Attention
from allmetal_models.layers.blocks import PostNormBlock
from allmetal_models.layers.decoder import Decoder, assemble
from allmetal_models.layers.mlp import GatedMLP
from allmetal_models.layers.norm import Norm, RMSNorm
from allmetal_models.layers.rope import rotary
from allmetal_models.layers.scope import Scope
from allmetal_models.rope_config import rope_config


def build(hf: HFConfig, ctx: BuildContext) -> Decoder:
    c = decoder_config(hf, {"rms_norm_eps": 1e-5})
    theta = 500_000.0 if hf["model_type"] == "olmo3" else 10_000.0
    kinds = _layer_types(hf, c.num_layers)
    windows = layer_windows(kinds, hf.get("sliding_window", 4096))
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


def _layer_types(hf: HFConfig, num_layers: int) -> list[str]:
    if hf["model_type"] == "olmo2":
        return ["full_attention"] * num_layers
    return hf.get("layer_types") or [
        "sliding_attention" if (index + 1) % 4 else "full_attention" for index in range(num_layers)
    ]
