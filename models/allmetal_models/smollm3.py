"""SmolLM3: Llama's block; every fourth layer has no rotary embedding.

Sources: huggingface.co/blog/smollm3; layers without positions arXiv:2501.18795.
"""

from __future__ import annotations

from allmetal_models.config import HFConfig, decoder_config, layer_windows
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
    rope = rotary(ctx, rope_config(hf, c.head_dim, default_theta=2_000_000.0))
    turns = _layers_that_turn(hf, c.num_layers)
    windows = _windows(hf, turns)
    norm = Norm(dim=c.hidden_size, eps=c.norm_eps, cast_before_weight=True)
    bias = bool(hf.get("attention_bias", False))

    def block(at: Scope, index: int) -> PreNormBlock:
        return PreNormBlock(
            attention_norm=AddRMSNorm(at / "input_layernorm", norm, first=index == 0),
            attention=Attention(
                at / "self_attn",
                c,
                rope=rope if turns[index] else None,
                window=windows[index],
                qkv_bias=bias,
                out_bias=bias,
            ),
            mlp_norm=AddRMSNorm(at / "post_attention_layernorm", norm),
            mlp=GatedMLP(at / "mlp", c, bias=bool(hf.get("mlp_bias", False))),
        )

    return assemble(ctx, c, block, norm)


def _layers_that_turn(hf: HFConfig, num_layers: int) -> list[bool]:
    """`no_rope_layers` is 1 where there is a rotary embedding, against its name."""
    if listed := hf.get("no_rope_layers"):
        return [bool(turns) for turns in listed]
    period = int(hf["no_rope_layer_interval"])
    return [(index + 1) % period != 0 for index in range(num_layers)]


def _windows(hf: HFConfig, turns: list[bool]) -> tuple[int | None, ...]:
    window = hf.get("sliding_window") if hf.get("use_sliding_window") else None
    kinds = hf.get("layer_types") or [
        "full_attention" if here or window is None else "sliding_attention" for here in turns
    ]
    return layer_windows(kinds, window)
