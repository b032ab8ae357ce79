"""A checkpoint's tensors into MLX, one after the other, under short names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import mlx.core as mx
import torch

from allmetal.errors import CheckpointError
from allmetal.quant.int8 import quantize
from allmetal_mlx import ops
from allmetal_mlx.bridge import to_mlx
from allmetal_mlx.models import Decoder, Family, Product
from allmetal_models.base import WeightReader

_BODY = re.compile(r"^(model\.language_model\.|language_model\.model\.|language_model\.|model\.)")
_IGNORED = re.compile(r"(^|\.)(vision_tower|multi_modal_projector)\.|\.rotary_emb\.inv_freq$")


def shapes(made: Family) -> Mapping[str, tuple[int, ...]]:
    """Short name -> shape of every tensor the family has."""
    c = made.config
    hidden, inner = c.hidden_size, c.intermediate_size
    q, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (q, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, q),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    if made.sandwich:
        layer |= dict.fromkeys(
            ("pre_feedforward_layernorm", "post_feedforward_layernorm"), (hidden,)
        )
    if made.qk_norm:
        layer |= dict.fromkeys(("self_attn.q_norm", "self_attn.k_norm"), (c.head_dim,))
    table = (c.vocab_size, hidden)
    return {
        "embed_tokens": table,
        "norm": (hidden,),
        **({} if c.tie_embeddings else {"lm_head": table}),
        **{
            f"layers.{i}.{name}": shape
            for i in range(c.num_layers)
            for name, shape in layer.items()
        },
    }


def full_name(short: str) -> str:
    """As checkpoints of a language model alone spell it."""
    return f"{short}.weight" if short == "lm_head" else f"model.{short}.weight"


def load(
    made: Family,
    readers: Iterable[tuple[str, WeightReader]],
    dtype: torch.dtype,
    quantization: str | None,
) -> Decoder:
    """Dense weights of `dtype`, or quantised ones for "int8".  CheckpointError names what is
    missing and what nothing wants."""
    wanted = dict(shapes(made))
    vectors: dict[str, mx.array] = {}
    products: dict[str, Product] = {}
    unexpected: list[str] = []
    for name, reader in readers:
        short = _BODY.sub("", name).removesuffix(".weight")
        if _IGNORED.search(name) or (short == "lm_head" and made.config.tie_embeddings):
            continue
        if wanted.pop(short, None) != tuple(reader.shape):
            unexpected.append(f"{name} {list(reader.shape)}")
            continue
        dense = reader.dequantize(dtype)
        if short == "embed_tokens":
            vectors[short] = to_mlx(dense)
        elif dense.dim() == 1:
            vectors[short] = to_mlx(dense).astype(mx.float32) + made.norm_offset
        if short == "embed_tokens" and made.config.tie_embeddings:
            products["lm_head"] = _tied(vectors[short], dense, quantization)
        elif short != "embed_tokens" and dense.dim() == 2:
            products[short] = _product(dense, quantization)
        mx.eval(list(vectors.values()))
    if wanted or unexpected:
        raise CheckpointError(
            f"the checkpoint does not fit MLX's model: missing {sorted(wanted)[:5]}, unexpected"
            f" {unexpected[:5]}",
            hint="--kernel linear=mlx_linear runs the core's model instead, with MLX's kernels",
        )
    return Decoder(made, vectors, products)


def _tied(table: mx.array, dense: torch.Tensor, quantization: str | None) -> Product:
    """The output layer shares the embedding's memory, unless it is quantised."""
    return ops.Dense(table) if quantization is None else _product(dense, quantization)


def _product(dense: torch.Tensor, quantization: str | None) -> Product:
    if quantization == "int8" and dense.shape[1] % ops.GROUP == 0:
        tensors = quantize(dense)
        return ops.quantised(to_mlx(tensors["weight"]), to_mlx(tensors["scale"]), bits=8)
    weight = ops.Dense(to_mlx(dense))
    mx.eval(weight.weight)
    return weight
