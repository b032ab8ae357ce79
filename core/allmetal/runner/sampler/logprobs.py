"""Log probabilities of chosen tokens, of the most likely ones, and ranks.

Legend: R rows, V vocabulary, K entries beside the chosen token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from allmetal.request import Logprobs
from allmetal.runner.padding import AS_THEY_ARE, Padding


@dataclass(slots=True, kw_only=True)
class RowLogprobs:
    """R rows of logprobs on the device; row i wants `counts[i]` entries beside the chosen one, and
    those behind the last count are nobody's."""

    token_ids: torch.Tensor  # [R, 1 + K] int64, the chosen token first
    logprobs: torch.Tensor  # [R, 1 + K] float32
    ranks: torch.Tensor  # [R] int64, of the chosen token
    counts: list[int]

    @property
    def num_words(self) -> int:
        return 2 * self.token_ids.numel() + self.ranks.numel()

    def pack(self) -> torch.Tensor:
        """[num_words] int64: everything, for one copy to the host."""
        bits = self.logprobs.contiguous().view(torch.int32).to(torch.int64)
        return torch.cat((self.token_ids.view(-1), bits.view(-1), self.ranks))

    def unpack(self, words: list[int]) -> list[Logprobs]:
        """What `pack` packed, as it crosses the API."""
        rows, width = self.token_ids.shape
        size = rows * width
        flat = np.array(words, dtype=np.int64)
        ids = flat[:size].reshape(rows, width).tolist()
        reals = flat[size : 2 * size].astype(np.int32).view(np.float32).reshape(rows, width)
        ranks = flat[2 * size :].tolist()
        return [
            Logprobs(
                token_ids=ids[row][: 1 + count],
                logprobs=reals[row, : 1 + count].tolist(),
                ranks=[ranks[row], *range(1, 1 + count)],
            )
            for row, count in enumerate(self.counts)
        ]


def row_logprobs(
    logits: torch.Tensor,
    chosen: torch.Tensor,
    counts: list[int],
    padding: Padding = AS_THEY_ARE,
) -> RowLogprobs:
    """logits [R, V] float32 and chosen token ids [R] int64, with `counts` entries beside them, of
    the first rows if there are fewer."""
    width = padding.length(min(max(counts, default=0), logits.shape[1]), logits.shape[1])
    norm = logits.logsumexp(dim=1, keepdim=True)
    ids = chosen[:, None]
    scores = logits.gather(1, ids)
    ranks = (logits > scores).sum(dim=1) + 1
    if width:
        top = logits.topk(width, dim=1)
        ids = torch.cat((ids, top.indices), dim=1)
        scores = torch.cat((scores, top.values), dim=1)
    counts = [min(count, width) for count in counts]
    return RowLogprobs(token_ids=ids, logprobs=scores - norm, ranks=ranks, counts=counts)
