"""Decode steps recorded once and replayed: one small copy in, one replay, one copy out.

A ladder of batch sizes is recorded when the cache is there, or where that computes too, each when
it first comes.  A step takes the smallest that holds it, and rows left over run on the padding
slot.  Each graph makes its inputs from the sequences'
state, chooses greedily and writes the tokens back.  Where rows ask for more, a token is chosen
again from the logits and overwrites the first, an argmax for nothing: by another, small graph
where some are drawn, by the sampler where logits are edited or reported.

Legend: B rows of a graph, N of them sequences, G KV groups, V vocabulary.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from allmetal.executor.contract import NO_TOKEN, StepPlan
from allmetal.platform.batch import AtReplay, AttentionBatch, Batch, DeviceOnly
from allmetal.platform.contract import GraphCapture
from allmetal.platform.specs import DecodeStateOp, SamplingOp
from allmetal.runner.graphs.recording import Ladder
from allmetal.runner.inputs import SampleRows
from allmetal.runner.sampler.params import Records
from allmetal.runner.sampler.random import uniform
from allmetal.runner.state import SequenceState
from allmetal.runner.transfer import Uploader
from allmetal_models.base import CausalLM


@dataclass(slots=True, kw_only=True)
class Replayed:
    """A step that was replayed.  Both tensors are the graph's own: the next replay, of whatever
    size, overwrites them."""

    rows: SampleRows
    logits: torch.Tensor  # [N, V] float32
    token_ids: torch.Tensor  # [N] int64, the greedy choice, which the state has already
    size: int


_DRAWS = (False, True)
"""Without and with filters."""


class DecodeGraphs:
    """Not thread-safe; steps come in order."""

    def __init__(
        self,
        *,
        model: CausalLM,
        state: SequenceState,
        decode_state: DecodeStateOp,
        sampling: SamplingOp,
        uploader: Uploader,
    ) -> None:
        self._model = model
        self._state = state
        self._decode_state = decode_state
        self._sampling = sampling
        self._uploader = uploader
        self._sections = 2 + state.num_groups
        self._steps: Ladder | None = None
        self._draws: dict[bool, Ladder] = {}
        self._at_replay: dict[int, AtReplay] = {}
        self._made_views: dict[
            tuple[int, int], tuple[torch.Tensor, torch.Tensor, torch.Tensor]
        ] = {}

    @property
    def sizes(self) -> Sequence[int]:
        """Those that are recorded, or will be when they come; rising."""
        return self._steps.sizes if self._steps else ()

    @property
    def complete(self) -> bool:
        """Whether what is not greedy is recorded too."""
        return all(each in self._draws and self._draws[each].sizes == self.sizes for each in _DRAWS)

    # ---- once ------------------------------------------------------------------------------

    def record(self, capture: GraphCapture, sizes: Sequence[int]) -> str | None:
        """Record steps of `sizes` sequences.  Returns why some are missing, or None."""
        device, largest = self._state.tokens.device, max(sizes)
        self._made_views.clear()
        self._words = torch.empty(self._sections * largest, dtype=torch.int64, device=device)
        self._logits = torch.empty(largest, self._model.vocab_size, device=device)
        self._query_start = torch.arange(largest + 1, dtype=torch.int32, device=device)
        self._steps = Ladder(
            capture, sizes, self._pad, self._run, "sequences", at_once=[min(sizes)]
        )
        self._draws = {
            filtered: Ladder(
                capture,
                self._steps.sizes,
                self._pad,
                partial(self._draw, filtered=filtered),
                "sequences that are not greedy",
            )
            for filtered in _DRAWS
        }
        reasons = (ladder.reason for ladder in (self._steps, *self._draws.values()))
        return next(filter(None, reasons), None)

    def _words_of(self, size: int) -> torch.Tensor:
        """[2 + G, B] int64, see DecodeStateOp."""
        return self._words[: self._sections * size].view(self._sections, size)

    def _pad(self, size: int) -> None:
        """Padding in every row."""
        words = self._words_of(size)
        words.zero_()
        words[0] = self._state.padding_slot
        words[1] = 1

    def _run(self, size: int) -> torch.Tensor:
        """The whole step, from words to tokens in the state."""
        state, words = self._state, self._words_of(size)
        # Of the run that is recorded, which comes last.
        at_replay = self._at_replay[size] = AtReplay()
        token_ids, positions, seq_lens, tables, mappings = self._decode_state.read(
            words, state.tokens, state.tables
        )
        groups = tuple(
            AttentionBatch(
                query_start=self._query_start[: size + 1],
                seq_lens=seq_lens,
                block_table=table,
                slot_mapping=mapping,
                max_query_len=1,
                max_seq_len=state.row_length - 1,
                host_query_lens=[1] * size,
                host_seq_lens=DeviceOnly(),
                at_replay=at_replay,
            )
            for table, mapping in zip(tables.unbind(0), mappings.unbind(0), strict=True)
        )
        hidden = self._model.forward(Batch(token_ids=token_ids, positions=positions, groups=groups))
        logits = self._model.logits(hidden, self._logits[:size])
        chosen = self._sampling(logits, None, None, None, None, None)
        return self._decode_state.write(words, state.tokens, chosen, logits)

    def _draw(self, size: int, *, filtered: bool) -> torch.Tensor:
        """Tokens once more, with what each sequence's record asks for; greedy rows stay so."""
        words = self._words_of(size)
        records = Records(self._state.records.index_select(0, words[0]))
        filters = (
            records.integer("top_k").contiguous() if filtered else None,
            records.real("top_p").contiguous() if filtered else None,
            records.real("min_p").contiguous() if filtered else None,
        )
        temperature = records.real("temperature").contiguous()
        draws = uniform(records.key, words[1])
        chosen = self._sampling(self._logits[:size], temperature, *filters, draws)
        # The step has looked whether there is anything to choose from.
        assert self._steps is not None
        chosen = torch.where(self._steps.result(size) == NO_TOKEN, NO_TOKEN, chosen)
        return self._decode_state.write(words, self._state.tokens, chosen)

    # ---- every step ------------------------------------------------------------------------

    def replay(self, step: StepPlan) -> Replayed | None:
        """Launch `step`, or None if it is none of those that are recorded: one in which every
        sequence computes one token and gets one, and none starts."""
        count, sizes = len(step.slots), self.sizes
        place = bisect_left(sizes, count)
        if step.num_tokens != count or step.starts or place == len(sizes):
            return None
        size = sizes[place]
        lengths = [computed + 1 for computed in step.num_computed]
        packed = self._pack(step, lengths, size)
        if packed is None:
            return None
        self._uploader.overwrite(self._words, packed)
        assert self._steps is not None
        if size in self._at_replay and self._at_replay[size].tells:
            told = lengths + [1] * (size - count)
            for tell in self._at_replay[size].tells:
                tell(told)
        token_ids = self._steps.launch(size)
        if token_ids is None:
            return None
        padding = size - count if self._state.padding.static else 0
        count += padding
        slots, positions, logits = self._views(size, count)
        rows = SampleRows(
            host_slots=step.slots + [self._state.padding_slot] * padding,
            host_positions=lengths + [1] * padding,
            slots=slots,
            positions=positions,
            hidden=None,
        )
        return Replayed(
            rows=rows,
            logits=logits,
            token_ids=token_ids if count == size else token_ids[:count],
            size=size,
        )

    def _views(self, size: int, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Slots, positions and logits of the first rows of a graph: made once, since between two
        steps every call of torch counts."""
        if (size, count) not in self._made_views:
            slots, positions = self._words_of(size)[:2, :count].unbind(0)
            self._made_views[size, count] = slots, positions, self._logits[:count]
        return self._made_views[size, count]

    def draw(self, step: Replayed, *, filtered: bool) -> torch.Tensor | None:
        """Tokens [N] int64 of a step just replayed, drawn as each sequence wants; `filtered`: some
        row has a top-k, a top-p or a min-p.  They replace the greedy ones in the state.  None if
        that is not recorded."""
        token_ids = self._draws[filtered].launch(step.size)
        return None if token_ids is None else token_ids[: len(step.token_ids)]

    def _pack(self, step: StepPlan, lengths: list[int], size: int) -> array[int] | None:
        """The words of a graph of `size` rows, or None for a step that it cannot do."""
        if not all(step.samples):
            return None
        padding = size - len(lengths)
        words = array("q", step.slots)
        words.fromlist([self._state.padding_slot] * padding)
        words.fromlist(lengths)
        words.fromlist([1] * padding)
        opened = len(words)
        words.frombytes(bytes(8 * self._state.num_groups * size))
        if step.new_blocks:
            row_of = {slot: row for row, slot in enumerate(step.slots)}
            for slot, group, index, blocks in step.new_blocks:
                row = row_of[slot]
                if len(blocks) != 1 or index != (lengths[row] - 1) // self._state.block_size:
                    return None
                words[opened + group * size + row] = blocks[0]
        return words
