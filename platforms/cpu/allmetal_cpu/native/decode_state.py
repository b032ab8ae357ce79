"""A decode step's inputs from the sequences' state, and its tokens back to it."""

from __future__ import annotations

import torch

from allmetal.platform.specs import DecodeStateOp, DecodeStateSpec
from allmetal_cpu.native.kernel import NativeKernel
from allmetal_cpu.native.library import Library, pointer


class _Op:
    # B sequences, S slots, L longest sequence, G KV groups, P blocks a sequence, V vocabulary
    def __init__(self, spec: DecodeStateSpec, library: Library) -> None:
        self._block_size = spec.block_size
        self._read = library.function("read_state")
        self._write = library.function("write_state")

    def read(
        self, words: torch.Tensor, tokens: torch.Tensor, tables: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        (groups, slots, width), count = tables.shape, words.shape[1]
        words = words.contiguous()
        assert tokens.is_contiguous()
        assert tables.is_contiguous()
        token_ids = words.new_empty(count)
        positions = words.new_empty(count)
        seq_lens = tokens.new_empty(count)
        found = tables.new_empty(groups, count, width)
        mappings = words.new_empty(groups, count)
        self._read(
            words.data_ptr(),
            tokens.data_ptr(),
            tables.data_ptr(),
            *(x.data_ptr() for x in (token_ids, positions, seq_lens, found, mappings)),
            *(count, groups, slots, tokens.shape[1], width, self._block_size),
        )
        return token_ids, positions, seq_lens, found, mappings

    def write(
        self,
        words: torch.Tensor,
        tokens: torch.Tensor,
        token_ids: torch.Tensor,
        logits: torch.Tensor | None = None,
    ) -> torch.Tensor:
        words, token_ids = words.contiguous(), token_ids.contiguous()
        assert tokens.is_contiguous()
        logits = None if logits is None else logits.contiguous()
        out = torch.empty_like(token_ids)
        self._write(
            words.data_ptr(),
            tokens.data_ptr(),
            token_ids.data_ptr(),
            pointer(logits),
            out.data_ptr(),
            *(words.shape[1], tokens.shape[1], 0 if logits is None else logits.shape[1]),
        )
        return out


DECODE_STATE: NativeKernel[DecodeStateSpec, DecodeStateOp] = NativeKernel(lambda spec: None, _Op)
