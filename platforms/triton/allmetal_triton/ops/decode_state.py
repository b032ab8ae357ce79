"""A decode step's inputs in one launch, and its tokens back in another.

Bytes moved: the block tables of the sequences, 8 G B P, and a few words each.  What it saves is
launches: the same from torch's operators takes about twenty.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from allmetal.platform.contract import Support, Supported
from allmetal.platform.specs import DecodeStateOp, DecodeStateSpec
from allmetal_triton.jit.decode_state import read_state, write_state

_BLOCKS_AT_ONCE = 1024
_ROWS = 128


@dataclass(frozen=True, slots=True)
class TritonDecodeState:
    name: str = "triton_decode_state"

    def supports(self, spec: DecodeStateSpec) -> Support:
        return Supported(rank=10)

    def build(self, spec: DecodeStateSpec) -> DecodeStateOp:
        return _Op(spec)


@dataclass(frozen=True, slots=True)
class _Op:
    spec: DecodeStateSpec

    def read(
        self, words: torch.Tensor, tokens: torch.Tensor, tables: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        num_groups, num_slots, width = tables.shape
        num_seqs, device = words.shape[1], words.device
        per_token = torch.empty((2, num_seqs), dtype=torch.int64, device=device)
        seq_lens = torch.empty(num_seqs, dtype=torch.int32, device=device)
        found = torch.empty((num_groups, num_seqs, width), dtype=torch.int32, device=device)
        mappings = torch.empty((num_groups, num_seqs), dtype=torch.int64, device=device)
        if num_seqs:
            read_state[(num_seqs, num_groups)](
                words,
                tokens,
                tables,
                per_token[0],
                per_token[1],
                seq_lens,
                found,
                mappings,
                num_seqs,
                tokens.stride(0),
                num_slots,
                width,
                PAGE=self.spec.block_size,
                BLOCK=min(_BLOCKS_AT_ONCE, triton.next_power_of_2(width)),
                num_warps=4,
            )
        return per_token[0], per_token[1], seq_lens, found, mappings

    def write(
        self,
        words: torch.Tensor,
        tokens: torch.Tensor,
        token_ids: torch.Tensor,
        logits: torch.Tensor | None = None,
    ) -> torch.Tensor:
        num_seqs = words.shape[1]
        checked = token_ids if logits is None else torch.empty_like(token_ids)
        if num_seqs:
            write_state[(triton.cdiv(num_seqs, _ROWS),)](
                words,
                tokens,
                token_ids,
                logits,
                checked,
                num_seqs,
                tokens.stride(0),
                0 if logits is None else logits.stride(0),
                0 if logits is None else logits.shape[1],
                BLOCK=_ROWS,
                num_warps=4,
            )
        return checked
