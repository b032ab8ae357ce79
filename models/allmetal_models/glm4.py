"""GLM-4-0414: sandwich norms, rotary embedding on pairs in the first half of each head.

Sources: arXiv:2406.12793; huggingface.co/zai-org/GLM-4-9B-0414.
"""

from __future__ import annotations

from allmetal_models.config import HFConfig, decoder_config
from allmetal_models.context import BuildContext
from allmetal_models.defaults import complete
from allmetal_models.layers.attention import Attention
from allmetal_models.layers.blocks import SandwichBlock
from allmetal_models.layers.decoder import Decoder, assemble
from allmetal_models.layers.mlp import GatedMLP
from allmetal_models.layers.norm import AddRMSNorm, Norm, RMSNorm
from allmetal_models.layers.rope import rotary
from allmetal_models.layers.scope import Scope
from allmetal_models.rope_config import rope_config


def build(hf: HFConfig, ctx: BuildContext) -> Decoder:
    hf = complete(hf)
    c = decoder_config(hf)
    rope = rotary(ctx, rope_config(hf, c.head_dim, default_partial=0.5), interleaved=True)
    norm = Norm(dim=c.hidden_size, eps=c.norm_eps, cast_before_weight=True)
    bias = bool(hf["attention_bias"])

    def block(at: Scope, index: int) -> SandwichBlock:
        return SandwichBlock(
            attention_norm=AddRMSNorm(at / "input_layernorm", norm, first=index == 0),
            attention=Attention(at / "self_attn", c, rope=rope, qkv_bias=bias),
            attention_out_norm=RMSNorm(at / "post_self_attn_layernorm", norm),
            mlp_norm=AddRMSNorm(at / "post_attention_layernorm", norm),
            mlp=GatedMLP(at / "mlp", c, fused="gate_up_proj"),
            mlp_out_norm=RMSNorm(at / "post_mlp_layernorm", norm),
        )

    return assemble(ctx, c, block, norm)
