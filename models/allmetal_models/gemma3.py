"""Gemma 3, text: sandwich norms, QK norm, five layers with a window to one that sees all.

The two kinds of layer have rotary embeddings of their own.  Of a multimodal checkpoint the
language model is served.  Source: Gemma Team, arXiv:2503.19786.
"""

from __future__ import annotations

from allmetal.errors import ModelError
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
    if hf.get("use_bidirectional_attention"):
        raise ModelError("this Gemma 3 looks at later tokens too: it does not generate text")
    c = decoder_config(hf)
    rope = {
        "full_attention": rotary(
            ctx,
            rope_config(hf, c.head_dim, layer_type="full_attention", default_theta=1_000_000.0),
        ),
        "sliding_attention": rotary(
            ctx,
            rope_config(
                hf,
                c.head_dim,
                layer_type="sliding_attention",
                theta_field="rope_local_base_freq",
            ),
        ),
    }
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
                rope=rope[kinds[index]],
                window=windows[index],
                scale=scale,
                qkv_bias=bias,
                out_bias=bias,
                qk_norm="head",
                norm=norm,
            ),
            attention_out_norm=RMSNorm(at / "post_attention_layernorm", norm),
            mlp_norm=AddRMSNorm(at / "pre_feedforward_layernorm", norm),
            mlp=GatedMLP(at / "mlp", c),
            mlp_out_norm=RMSNorm(at / "post_feedforward_layernorm", norm),
        )

    body, head = _places(ctx)
    return assemble(
        ctx,
        c,
        block,
        norm,
        embed_scale=root_scale(c, ctx),
        logit_soft_cap=hf.get("final_logit_softcapping"),
        body=body,
        head=head,
        ignored=r"(^|\.)(vision_tower|multi_modal_projector)\.",
    )


def _places(ctx: BuildContext) -> tuple[str, str]:
    """Body and head in the checkpoint: alone, or beside a vision tower in one of two layouts."""
    layouts = (
        ("model.language_model", "lm_head"),
        ("language_model.model", "language_model.lm_head"),
    )
    for body, head in layouts:
        try:
            ctx.weight_format(f"{body}.embed_tokens.weight")
        except KeyError:
            continue
        return body, head
    return "model", "lm_head"
