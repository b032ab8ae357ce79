"""From logits to tokens.

Legend: B rows, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSpec:
    """Choice of one token a row from processed logits, with temperature, top-k/p and min-p."""

    family: ClassVar[str] = "sampling"
    vocab_size: int


class SamplingOp(Protocol):
    """logits [B, V] float32 -> token ids [B] int64.  Logits may be overwritten, unless all rows
    are greedy.

    `temperature` [B] float32 (0 is greedy), `top_k` [B] int32 (0 is off), `top_p` and `min_p`
    [B] float32, `uniform` [B] float32 in [0, 1): the row's only randomness, so that a row's
    result does not depend on its neighbours.  The None of an option says that no row uses it; no
    temperature means that all rows are greedy.

    Filters run in the order temperature, min-p, top-k, top-p, each on what the one before left;
    tokens as likely as the last one kept stay.  The token drawn is the first, in vocabulary
    order, whose cumulative share of the remaining probability exceeds `uniform`.
    """

    def __call__(
        self,
        logits: torch.Tensor,
        temperature: torch.Tensor | None,
        top_k: torch.Tensor | None,
        top_p: torch.Tensor | None,
        min_p: torch.Tensor | None,
        uniform: torch.Tensor | None,
    ) -> torch.Tensor: ...
