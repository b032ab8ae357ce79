"""Encoders: every token of a text sees every other, and nothing is kept between steps.

Source: Devlin et al., arXiv:1810.04805.  Legend: T tokens, H heads, D head dim, C channels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn import functional

from allmetal.errors import ConfigError, ModelError
from allmetal.platform.batch import Batch
from allmetal.platform.kv import KVSpec
from allmetal.platform.specs import AttentionOp, EncoderAttentionSpec
from allmetal_models.base import WeightReader
from allmetal_models.layers.formats import Rows
from allmetal_models.layers.linear import Linear
from allmetal_models.layers.loading import load
from allmetal_models.layers.pooling import Pooler
from allmetal_models.layers.scope import Scope

_ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": functional.gelu,
    "gelu_new": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """`first_position`: where the table of positions begins to count."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_positions: int
    num_types: int
    norm_eps: float
    activation: str
    first_position: int = 0


class Dense(Linear):
    """x [T, C] -> y [T, N] with a bias: one tensor of the checkpoint, or several side by side."""

    def __init__(self, places: Sequence[Scope], in_features: int, out_features: int) -> None:
        rows = [Rows(at=at, total=out_features, ranges=((0, out_features),)) for at in places]
        super().__init__(rows, in_features, bias=True)


class LayerNorm:
    """x [T, C] -> (x - mean) / sqrt(variance + eps) * weight + bias."""

    def __init__(self, at: Scope, dim: int, eps: float) -> None:
        self._weight, self._bias = at.parameter("weight", (dim,)), at.parameter("bias", (dim,))
        self._dim, self._eps = dim, eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (self._dim,), self._weight, self._bias, self._eps)


class Embeddings:
    """Of tokens, their positions and the segment of the text they belong to, summed."""

    def __init__(self, at: Scope, config: EncoderConfig) -> None:
        c = config
        self._tokens = (at / "word_embeddings").parameter("weight", (c.vocab_size, c.hidden_size))
        self._positions = (at / "position_embeddings").parameter(
            "weight", (c.num_positions, c.hidden_size)
        )
        self._types = (at / "token_type_embeddings").parameter(
            "weight", (c.num_types, c.hidden_size)
        )
        self._norm = LayerNorm(at / "LayerNorm", c.hidden_size, c.norm_eps)
        self._first = c.first_position

    def __call__(self, batch: Batch) -> torch.Tensor:
        x = functional.embedding(batch.token_ids, self._tokens)
        x = x + functional.embedding(batch.positions + self._first, self._positions)
        types = batch.token_types
        x = x + (self._types[0] if types is None else functional.embedding(types, self._types))
        return self._norm(x)


class EncoderLayer:
    """x = norm(x + attention(x)); x = norm(x + feed_forward(x))."""

    def __init__(self, at: Scope, config: EncoderConfig) -> None:
        c, kernels = config, at.ctx.kernels
        dim = c.hidden_size
        self._heads, self._head_dim = c.num_heads, dim // c.num_heads
        inner = at / "attention.self"
        self._qkv = Dense([inner / name for name in ("query", "key", "value")], dim, dim)
        self._attend = kernels.bind(
            EncoderAttentionSpec(
                dtype=at.ctx.dtype_name,
                num_heads=c.num_heads,
                num_kv_heads=c.num_heads,
                head_dim=self._head_dim,
                scale=self._head_dim**-0.5,
            )
        )
        self._out = Dense([at / "attention.output.dense"], dim, dim)
        self._out_norm = LayerNorm(at / "attention.output.LayerNorm", dim, c.norm_eps)
        self._up = Dense([at / "intermediate.dense"], dim, c.intermediate_size)
        self._activate = _ACTIVATIONS[c.activation]
        self._down = Dense([at / "output.dense"], c.intermediate_size, dim)
        self._norm = LayerNorm(at / "output.LayerNorm", dim, c.norm_eps)

    def __call__(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        q, k, v = self._qkv(x).unflatten(-1, (3, self._heads, self._head_dim)).unbind(1)
        assert batch.query_start is not None
        attended = self._attend(q, k, v, batch.query_start, batch.host_query_lens).flatten(1)
        x = self._out_norm(x + self._out(attended))
        return self._norm(x + self._down(self._activate(self._up(x))))


class Encoder:
    """A model that gives hidden states of whole texts, for its `pooler` to make vectors of."""

    attention_ops: tuple[AttentionOp, ...] = ()
    kv_specs: tuple[KVSpec, ...] = ()

    def __init__(
        self, root: Scope, body: Scope, config: EncoderConfig, pooler: Pooler, ignored: str
    ) -> None:
        ctx = root.ctx
        if ctx.tp_size > 1:
            raise ConfigError("encoders run on one device", hint="leave --tensor-parallel-size out")
        if config.activation not in _ACTIVATIONS:
            raise ModelError(f"activation {config.activation!r} of an encoder is not known")
        self._root, self._ignored = root, re.compile(ignored)
        self.vocab_size, self.pooler = config.vocab_size, pooler
        self._embed = Embeddings(body / "embeddings", config)
        self._layers = [
            EncoderLayer(body / f"encoder.layer.{index}", config)
            for index in range(config.num_layers)
        ]

    def bind_caches(self, caches: Sequence[torch.Tensor], groups: Sequence[int]) -> None:
        assert not caches

    @property
    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: layers[0].shape for name, layers in self._root.wanted.items()}

    def load_weights(self, readers: Iterable[tuple[str, WeightReader]]) -> None:
        load(self._root.ctx, self._root.wanted, readers, self._ignored)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> torch.Tensor:
        x = self._embed(batch)
        for layer in self._layers:
            x = layer(x, batch)
        return x

    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        raise ModelError("an encoder does not continue a text")
