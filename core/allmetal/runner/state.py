"""What sequences own on the device between steps: one row a slot, and one that is nobody's.

The host never reads this state back.  A sampled token is written here by the runner, so the next
step takes it from here and not from the host.

Legend: S slots, L longest sequence, G KV groups, P blocks a sequence at most.
"""

from __future__ import annotations

from array import array

import torch

from allmetal.executor.contract import StepPlan
from allmetal.runner.padding import AS_THEY_ARE, Padding
from allmetal.runner.sampler.params import RECORD_WORDS, no_record, record
from allmetal.runner.transfer import Uploader


class SequenceState:
    """Tokens, block tables and sampling records of every slot.

    `padding_slot` is no sequence's: its blocks are the null block, and what stands in it are
    tokens of the vocabulary that nobody reads.
    """

    def __init__(
        self,
        *,
        num_slots: int,
        max_model_len: int,
        num_groups: int,
        block_size: int,
        device: torch.device,
        padding: Padding = AS_THEY_ARE,
    ) -> None:
        self.padding = padding
        self.num_slots = num_slots
        self.padding_slot = num_slots
        self.num_groups = num_groups
        self.block_size = block_size
        self.row_length = max_model_len + 1  # one more, for a token sampled at the very end
        self.blocks_per_row = -(-max_model_len // block_size)
        # Not zeroed: what lies behind a sequence's end is never read without a mask, and pages
        # of host memory that no sequence reaches are never taken.
        rows = num_slots + 1
        self.tokens = torch.empty(rows, self.row_length, dtype=torch.int32, device=device)
        self.tokens[self.padding_slot] = 0
        self.tables = torch.zeros(
            num_groups, rows, self.blocks_per_row, dtype=torch.int32, device=device
        )
        self.records = torch.tensor([no_record()] * rows, dtype=torch.int64, device=device)
        self.flat_tokens = self.tokens.view(-1)
        self._flat_tables = self.tables.view(-1)

    def update(self, step: StepPlan, uploader: Uploader) -> None:
        """Make the step's changes."""
        if self.padding.static:
            self._update_padded(step, uploader)
            return
        words = array("q")
        sections = self.pack_updates(step, words)
        if sections:
            self.apply_updates(step, list(uploader.send(words).split(sections)))

    def _update_padded(self, step: StepPlan, uploader: Uploader) -> None:
        """Each kind of change as pairs of a place and what stands there, filled up with pairs that
        change the padding's row, which is nobody's."""
        if step.starts:
            words = array("q")
            count = self.padding.append(words, [s.slot for s in step.starts], self.padding_slot)
            for start in step.starts:
                words.frombytes(record(start))
            for _ in range(count - len(step.starts)):
                words.extend(no_record())
            slots, records = uploader.send(words).split([count, RECORD_WORDS * count])
            self.records.index_copy_(0, slots, records.view(-1, RECORD_WORDS))
            self.tables.index_fill_(1, slots, 0)
            places, ids = array("q"), array("q")
            for start in step.starts:
                first = start.slot * self.row_length
                places.extend(range(first, first + len(start.token_ids)))
                ids.extend(start.token_ids)
            first = self.padding_slot * self.row_length
            self._write_pairs(self.flat_tokens, places, ids, first, uploader)
        if step.new_blocks:
            places, blocks = self._block_places(step)
            first = self.padding_slot * self.blocks_per_row
            self._write_pairs(self._flat_tables, places, blocks, first, uploader)

    def _write_pairs(
        self,
        into: torch.Tensor,
        places: array[int],
        values: array[int],
        nowhere: int,
        uploader: Uploader,
    ) -> None:
        words = array("q")
        self.padding.append(words, places, nowhere)
        self.padding.append(words, values, 0)
        at, what = uploader.send(words).view(2, -1).unbind(0)
        into.index_copy_(0, at, what.to(torch.int32))

    def _block_places(self, step: StepPlan) -> tuple[array[int], array[int]]:
        """Where new blocks are noted in the flat tables, and which."""
        places, blocks = array("q"), array("q")
        for slot, group, index, block_ids in step.new_blocks:
            first = (group * self.tables.shape[1] + slot) * self.blocks_per_row + index
            places.extend(range(first, first + len(block_ids)))
            blocks.extend(block_ids)
        return places, blocks

    def pack_updates(self, step: StepPlan, words: array[int]) -> list[int]:
        """Append the step's changes to `words`; returns the lengths of the appended sections."""
        sections: list[int] = []
        if step.starts:
            words.extend(start.slot for start in step.starts)
            for start in step.starts:
                words.frombytes(record(start))
            for start in step.starts:
                words.fromlist(start.token_ids)
            sections += [len(step.starts), RECORD_WORDS * len(step.starts)]
            sections += [len(start.token_ids) for start in step.starts]
        if step.new_blocks:
            places, blocks = self._block_places(step)
            words.extend(places)
            words.extend(blocks)
            sections += [len(places), len(blocks)]
        return sections

    def apply_updates(self, step: StepPlan, sections: list[torch.Tensor]) -> None:
        """Write what `pack_updates` packed; the sections are its lengths of the pack."""
        if step.starts:
            slots, records, *prompts = sections[: 2 + len(step.starts)]
            self.records.index_copy_(0, slots, records.view(-1, RECORD_WORDS))
            self.tables.index_fill_(1, slots, 0)
            for start, prompt in zip(step.starts, prompts, strict=True):
                self.tokens[start.slot, : prompt.shape[0]] = prompt
        if step.new_blocks:
            places, blocks = sections[-2:]
            self._flat_tables.index_copy_(0, places, blocks.to(torch.int32))

    def write_tokens(self, slots: torch.Tensor, positions: torch.Tensor, ids: torch.Tensor) -> None:
        """tokens[slots[i], positions[i]] = ids[i]; all [R] int64.

        NO_TOKEN is written as a token of the vocabulary: a step that was started ahead reads it.
        """
        places = slots * self.row_length + positions
        self.flat_tokens.index_copy_(0, places, ids.clamp(min=0).to(torch.int32))
