"""What decoding sequences own on the device.

Legend: S slots, B sequences, G KV groups, P blocks a sequence, L tokens a sequence, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeStateSpec:
    """A decode step's inputs from the sequences' state on the device, and its tokens back to it."""

    family: ClassVar[str] = "decode_state"
    block_size: int


class DecodeStateOp(Protocol):
    """The state of S slots is tokens [S, L] int32 and block tables [G, S, P] int32.

    words [2 + G, B] int64 says for B sequences with one new token each: their slots; their
    lengths, this token included; and of each KV group the block that the token opens, 0 if it
    opens none.  Rows of padding may share a slot, and agree then.
    """

    def read(
        self, words: torch.Tensor, tokens: torch.Tensor, tables: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Notes opened blocks in `tables`.  Returns token_ids [B] int64, positions [B] int64,
        seq_lens [B] int32, block_tables [G, B, P] int32 and slot_mappings [G, B] int64, the last
        two as `AttentionBatch` has them."""
        ...

    def write(
        self,
        words: torch.Tensor,
        tokens: torch.Tensor,
        token_ids: torch.Tensor,
        logits: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """tokens[slot, length] = token_ids [B] int64 of each sequence, or 0 for one below 0.

        Returns token_ids.  Where `logits` [B, V] float32 are given they are checked first: a token
        outside of V, or whose logit is no finite number, becomes -1.
        """
        ...
