"""A decode step's inputs from the sequences' state, and its tokens back to it.

Legend: B sequences, S slots, L longest sequence, G KV groups, P blocks a sequence at most.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from allmetal.platform.reference.kernel import ReferenceKernel
from allmetal.platform.specs import DecodeStateOp, DecodeStateSpec


@dataclass(frozen=True, slots=True)
class _DecodeState:
    spec: DecodeStateSpec

    def read(
        self, words: torch.Tensor, tokens: torch.Tensor, tables: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        slots, lengths, opened = words[0], words[1], words[2:]
        positions = lengths - 1
        token_ids = tokens.view(-1).index_select(0, slots * tokens.shape[1] + positions)
        num_groups, num_slots, width = tables.shape
        blocks = positions // self.spec.block_size
        rows = torch.arange(num_groups, device=words.device)[:, None] * num_slots + slots
        places = (rows * width + blocks).view(-1)  # [G * B] of the flat tables
        flat = tables.view(-1)
        held = flat.index_select(0, places)
        owned = torch.where(opened.reshape(-1) > 0, opened.reshape(-1).to(torch.int32), held)
        flat.index_copy_(0, places, owned)
        offsets = positions - blocks * self.spec.block_size
        slot_mappings = owned.view(num_groups, -1).long() * self.spec.block_size + offsets
        return (
            token_ids.long(),
            positions,
            lengths.to(torch.int32),
            tables.index_select(1, slots),
            slot_mappings,
        )

    def write(
        self,
        words: torch.Tensor,
        tokens: torch.Tensor,
        token_ids: torch.Tensor,
        logits: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if logits is not None:
            known = token_ids.clamp(0, logits.shape[1] - 1)
            sound = logits.gather(1, known[:, None])[:, 0].isfinite() & (known == token_ids)
            token_ids = torch.where(sound, token_ids, -1)
        places = words[0] * tokens.shape[1] + words[1]
        tokens.view(-1).index_copy_(0, places, token_ids.clamp(min=0).to(torch.int32))
        return token_ids


KERNEL: ReferenceKernel[DecodeStateSpec, DecodeStateOp] = ReferenceKernel(
    lambda spec: None, _DecodeState
)
