"""From the hidden states of texts to one vector each.

Legend: T tokens, B texts, C channels, N values of a vector.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from allmetal_models.pooling_config import PoolingConfig

Head = Callable[[torch.Tensor], torch.Tensor]


class Pooler:
    """`whole`: it needs all hidden states of a text at once.  `head`: scores [B, N] of pooled
    states [B, C], None where these are the result."""

    def __init__(self, config: PoolingConfig, hidden_size: int, head: Head | None = None) -> None:
        self._config, self._head = config, head
        self.whole = config.kind != "last"
        self.size = config.num_labels or hidden_size

    @torch.inference_mode()
    def __call__(self, hidden: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        """hidden [T, C], starts [B + 1] int64 -> [B, N] float32."""
        pooled = self._pool(hidden, starts)
        if self._head is not None:
            return self._head(pooled).float()
        pooled = pooled.float()
        return functional.normalize(pooled, dim=-1) if self._config.normalize else pooled

    def _pool(self, hidden: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        match self._config.kind:
            case "cls":
                return hidden.index_select(0, starts[:-1])
            case "last":
                return hidden.index_select(0, starts[1:] - 1)
            case "mean":
                lens = starts.diff()
                owner = torch.repeat_interleave(lens, output_size=hidden.shape[0])
                sums = hidden.new_zeros(len(lens), hidden.shape[1], dtype=torch.float32)
                return sums.index_add_(0, owner, hidden.float()) / lens.unsqueeze(-1)
