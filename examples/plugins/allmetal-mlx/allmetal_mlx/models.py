"""Decoders in MLX, for the families that are worth one: a step is one lazy graph.

What a family is comes from the core's readers of config.json, so that names, defaults and rotary
tables are the same as everywhere.

Legend: T tokens, C channels, H query heads, K key-value heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import mlx.core as mx

from allmetal_mlx import ops
from allmetal_mlx.bridge import to_mlx
from allmetal_mlx.cache import GroupStep, Pool
from allmetal_models.config import (
    DecoderConfig,
    HFConfig,
    decoder_config,
    every_nth_full,
    last_layers_slide,
    layer_windows,
)
from allmetal_models.defaults import complete
from allmetal_models.layers.rope import cos_sin_table
from allmetal_models.rope_config import rope_config

Product = ops.Dense | ops.Quantised


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How one model is put together.  Of each layer: its window and its rotary table [P, D]."""

    config: DecoderConfig
    windows: tuple[int | None, ...]
    tables: tuple[mx.array, ...]
    scale: float
    qk_norm: bool = False
    sandwich: bool = False
    norm_offset: float = 0.0
    embed_scale: float | None = None
    soft_cap: float | None = None


def _llama(hf: HFConfig, longest: int) -> Family:
    c = decoder_config(hf)
    table = to_mlx(cos_sin_table(rope_config(hf, c.head_dim), longest))
    return Family(
        config=c,
        windows=(None,) * c.num_layers,
        tables=(table,) * c.num_layers,
        scale=c.head_dim**-0.5,
    )


def _qwen3(hf: HFConfig, longest: int) -> Family:
    c = decoder_config(hf)
    table = to_mlx(cos_sin_table(rope_config(hf, c.head_dim), longest))
    return Family(
        config=c,
        windows=layer_windows(last_layers_slide(hf, c.num_layers), hf["sliding_window"]),
        tables=(table,) * c.num_layers,
        scale=c.head_dim**-0.5,
        qk_norm=True,
    )


def _gemma3(hf: HFConfig, longest: int) -> Family:
    c = decoder_config(hf)
    full = rope_config(hf, c.head_dim, layer_type="full_attention", default_theta=1_000_000.0)
    near = rope_config(
        hf, c.head_dim, layer_type="sliding_attention", theta_field="rope_local_base_freq"
    )
    tables = {
        kind: to_mlx(cos_sin_table(rope, longest))
        for kind, rope in (("full_attention", full), ("sliding_attention", near))
    }
    kinds = every_nth_full(hf, c.num_layers)
    return Family(
        config=c,
        windows=layer_windows(kinds, hf["sliding_window"]),
        tables=tuple(tables[kind] for kind in kinds),
        scale=hf["query_pre_attn_scalar"] ** -0.5,
        qk_norm=True,
        sandwich=True,
        norm_offset=1.0,
        embed_scale=c.hidden_size**0.5,
        soft_cap=hf.get("final_logit_softcapping"),
    )


FAMILIES: Mapping[str, Callable[[HFConfig, int], Family]] = {
    "gemma3": _gemma3,
    "gemma3_text": _gemma3,
    "llama": _llama,
    "qwen3": _qwen3,
}
"""Model types with an MLX model.  `attention_bias` and the like are refused while loading: a
tensor that no layer wants is an error."""


def family(hf: HFConfig, longest: int) -> Family:
    """Of a config.json; `longest` positions are rotated."""
    return FAMILIES[str(hf["model_type"])](complete(hf), longest)


class Decoder:
    """tokens [T] -> hidden [T, C] after the last norm -> logits [N, V] float32.

    By short name ("layers.3.self_attn.q_proj"): `vectors`, which are the norms' with the family's
    offset added and the embedding, and `products`, the head's among them.
    """

    def __init__(
        self, made: Family, vectors: Mapping[str, mx.array], products: Mapping[str, Product]
    ) -> None:
        self._family, self._vectors, self._products = made, vectors, products

    def forward(
        self, tokens: mx.array, positions: mx.array, groups: Sequence[GroupStep], pool: Pool
    ) -> mx.array:
        """`groups`: each layer's view of the step."""
        made = self._family
        x = self._vectors["embed_tokens"][tokens]
        if made.embed_scale is not None:
            x = x * mx.array(made.embed_scale, x.dtype)
        for layer, step in enumerate(groups):
            at = f"layers.{layer}"
            branch = self._attention(
                layer, self._norm(f"{at}.input_layernorm", x), positions, step, pool
            )
            if made.sandwich:
                branch = self._norm(f"{at}.post_attention_layernorm", branch)
            x = x + branch
            before = "pre_feedforward_layernorm" if made.sandwich else "post_attention_layernorm"
            branch = self._mlp(at, self._norm(f"{at}.{before}", x))
            if made.sandwich:
                branch = self._norm(f"{at}.post_feedforward_layernorm", branch)
            x = x + branch
        return self._norm("norm", x)

    def logits(self, hidden: mx.array) -> mx.array:
        y = self._products["lm_head"](hidden).astype(mx.float32)
        cap = self._family.soft_cap
        return y if cap is None else cap * mx.tanh(y / cap)

    def _norm(self, name: str, x: mx.array) -> mx.array:
        wide = ops.rms_norm(x.astype(mx.float32), self._vectors[name], self._family.config.norm_eps)
        return wide.astype(x.dtype)

    def _mlp(self, at: str, x: mx.array) -> mx.array:
        gate, up = (self._products[f"{at}.mlp.{name}"](x) for name in ("gate_proj", "up_proj"))
        activation = self._family.config.activation
        return self._products[f"{at}.mlp.down_proj"](ops.gated(gate, up, activation))

    def _attention(
        self, layer: int, x: mx.array, positions: mx.array, step: GroupStep, pool: Pool
    ) -> mx.array:
        made, c = self._family, self._family.config
        at = f"layers.{layer}.self_attn"
        q, k, v = (
            self._products[f"{at}.{name}_proj"](x).reshape(x.shape[0], heads, c.head_dim)
            for name, heads in (("q", c.num_heads), ("k", c.num_kv_heads), ("v", c.num_kv_heads))
        )
        if made.qk_norm:
            q, k = self._norm(f"{at}.q_norm", q), self._norm(f"{at}.k_norm", k)
        cos, sin = mx.split(made.tables[layer][positions][:, None], 2, axis=-1)
        q, k = (ops.rotate(y.astype(mx.float32), cos, sin).astype(x.dtype) for y in (q, k))
        pool.write(layer, step.slot_mapping, k, v)
        parts = [
            part.attend(q[part.rows], *pool.read(layer, part.slots), made.scale)
            for part in step.parts
        ]
        out = parts[0] if len(parts) == 1 else mx.concatenate(parts)
        return self._products[f"{at}.o_proj"](out.reshape(x.shape[0], -1))
