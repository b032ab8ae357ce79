"""Which tokens a row may get, as the engine says step by step.

Legend: M rows with a mask, R rows, V vocabulary, B bytes of a mask, a multiple of 8.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import torch

from allmetal.executor.contract import TokenMasks
from allmetal.runner.inputs import SampleRows
from allmetal.runner.transfer import Uploader


@dataclass(slots=True)
class RowMasks:
    """`bias` [M, V] is 0 or -inf; `rows` [M] int64, None if they are all rows in their order."""

    bias: torch.Tensor
    rows: torch.Tensor | None

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Forbid in logits [R, V], in place where they can be."""
        if self.rows is None:
            return logits.add_(self.bias)
        return logits.index_add_(0, self.rows, self.bias)


class Masks:
    """Takes masks to the device as bits and spreads them there."""

    def __init__(self, uploader: Uploader, vocab_size: int) -> None:
        self._uploader = uploader
        self._vocab_size = vocab_size
        self._width = 8 * -(-vocab_size // 64)
        self._spread = torch.empty(0)  # [256, 8]: each byte's bits, as biases
        # Kept from step to step: they are large, and new memory is slow to touch.
        self._bytes = torch.empty(0)  # [M * B] int32
        self._bias = torch.empty(0)  # [M * B, 8]

    def of(self, masks: TokenMasks, rows: SampleRows) -> RowMasks | None:
        """Those of `rows`; None if none of them has one.  The next call overwrites them."""
        row_of = {slot: row for row, slot in enumerate(rows.host_slots)}
        found = [row_of[slot] for slot in masks.slots if slot in row_of]
        if not found:
            return None
        assert len(found) == len(masks.slots), "each masked slot is one of the step's"
        words = array("q")
        words.frombytes(masks.bits)
        words.fromlist(found)
        bits, places = self._uploader.send(words).split([len(words) - len(found), len(found)])
        bias = self._spread_out(bits, len(found))
        everything = found == list(range(len(rows.host_slots)))
        return RowMasks(bias[:, : self._vocab_size], None if everything else places)

    def _spread_out(self, bits: torch.Tensor, count: int) -> torch.Tensor:
        """[M, 8 * B] biases of packed bits."""
        size = count * self._width
        if self._bias.shape[0] < size:
            self._spread = _spread().to(bits.device)
            self._bytes = torch.empty(size, dtype=torch.int32, device=bits.device)
            self._bias = torch.empty(size, 8, device=bits.device)
        chosen = self._bytes[:size].copy_(bits.view(torch.uint8))
        torch.index_select(self._spread, 0, chosen, out=self._bias[:size])
        return self._bias[:size].view(count, self._width * 8)


def _spread() -> torch.Tensor:
    byte = torch.arange(256)[:, None]
    allowed = (byte >> torch.arange(8)) & 1 == 1
    return torch.where(allowed, 0.0, float("-inf"))
