"""A model of MLX's as the core's runner sees one: torch's integers in, torch's floats out.

Legend: T tokens, N sampled rows, C channels, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from allmetal.platform.batch import AttentionBatch, Batch
from allmetal.platform.kv import KVSpec
from allmetal.platform.plan import Plan
from allmetal.platform.specs import AttentionOp
from allmetal_mlx.bridge import DTYPES, to_mlx, to_torch
from allmetal_mlx.cache import Pool, group_step
from allmetal_mlx.loading import full_name, load, shapes
from allmetal_mlx.models import family
from allmetal_models.base import WeightReader
from allmetal_models.config import HFConfig


@dataclass(frozen=True, slots=True)
class CacheElsewhere:
    """What the runner takes for an attention layer's op, to learn its cache's shape.  The memory
    is MLX's, so torch's side is empty and only tells how many blocks there are."""

    kv_layout: str = "mlx"

    def cache_shape(self, num_blocks: int) -> tuple[int, ...]:
        return (num_blocks, 0)

    def __call__(
        self,
        q: torch.Tensor,
        cache: torch.Tensor,
        batch: AttentionBatch,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        raise AssertionError("MLX's models attend by themselves")


class MlxCausalLM:
    """Keeps the contract `allmetal_models.base.CausalLM`."""

    def __init__(self, hf: HFConfig, plan: Plan) -> None:
        self._plan = plan
        self._dtype: torch.dtype = getattr(torch, plan.dtype)
        self._family = made = family(hf, plan.max_model_len)
        self._row = (made.config.num_kv_heads, made.config.head_dim)
        self._groups: Sequence[int] = ()
        self.vocab_size = made.config.vocab_size
        self.kv_specs = tuple(
            KVSpec(
                kind="full" if window is None else "sliding_window",
                num_kv_heads=made.config.num_kv_heads,
                head_dim=made.config.head_dim,
                dtype=plan.kv_dtype,
                window=window,
            )
            for window in made.windows
        )

    @property
    def attention_ops(self) -> tuple[AttentionOp, ...]:
        return (CacheElsewhere(),) * len(self.kv_specs)

    @property
    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {full_name(short): shape for short, shape in shapes(self._family).items()}

    def load_weights(self, readers: Iterable[tuple[str, WeightReader]]) -> None:
        quantization = self._plan.quantization
        int8 = "int8" if quantization == "int8" else None  # GGML's blocks are expanded
        self._decoder = load(self._family, readers, self._dtype, int8)

    def bind_caches(self, caches: Sequence[torch.Tensor], groups: Sequence[int]) -> None:
        num_slots = caches[0].shape[0] * self._plan.block_size
        self._groups = groups
        self._pool = Pool(groups, num_slots, self._row, DTYPES[self._dtype])

    def forward(self, batch: Batch) -> torch.Tensor:
        windows = dict(zip(self._groups, self._family.windows, strict=True))
        views = {
            group: group_step(batch.groups[group], self._plan.block_size, window)
            for group, window in windows.items()
        }
        hidden = self._decoder.forward(
            to_mlx(batch.token_ids),
            to_mlx(batch.positions),
            [views[group] for group in self._groups],
            self._pool,
        )
        return to_torch(hidden)

    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        made = to_torch(self._decoder.logits(to_mlx(hidden)))
        return made if out is None else out.copy_(made)
