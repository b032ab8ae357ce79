"""Steps of prompts and decoding sequences together, recorded for a ladder of token counts.

The model's part is recorded, from the sequences' state to hidden states; what changes the state
before it and chooses tokens after it is launched by hand, and depends on few rows.  A step takes
the smallest size that holds it.  Tokens left over belong to sequences on the padding slot, and
sequences left over have no tokens.

Legend: T tokens of a graph, R sequences it may have, the padding included, C channels.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

import torch

from allmetal.executor.contract import StepPlan
from allmetal.platform.batch import DeviceOnly
from allmetal.platform.contract import GraphCapture
from allmetal.runner.batches import HostNumbers, Places, batch_of
from allmetal.runner.graphs.recording import Launch, record_ladder
from allmetal.runner.inputs import (
    SampleRows,
    StepInputs,
    pack_samples,
    padded_samples,
    sample_rows,
)
from allmetal.runner.state import SequenceState
from allmetal.runner.transfer import Uploader
from allmetal_models.base import CausalLM


class MixedGraphs:
    """Not thread-safe; steps come in order."""

    def __init__(self, *, model: CausalLM, state: SequenceState, uploader: Uploader) -> None:
        self._model = model
        self._state = state
        self._uploader = uploader
        self._sizes: list[int] = []
        self._steps: dict[int, Launch] = {}
        self._hidden = torch.empty(0)

    @property
    def sizes(self) -> Sequence[int]:
        """Those that are recorded, rising."""
        return self._sizes

    def _rows(self, size: int) -> int:
        """R: as many sequences as there can be, each with a token or more, and the padding."""
        return min(self._state.num_slots, size) + 1

    # ---- once ------------------------------------------------------------------------------

    def record(self, capture: GraphCapture, sizes: Sequence[int]) -> str | None:
        """Record steps of `sizes` tokens.  Returns why some are missing, or None."""
        device = self._state.tokens.device
        # Slots, lengths and starts of R sequences; then slot, position and hidden row of samples.
        words = 6 * self._rows(max(sizes)) + 1
        self._words = torch.empty(words, dtype=torch.int64, device=device)
        self._ramp = torch.arange(max(sizes), device=device)
        self._hidden = torch.empty(0)
        self._steps, missing = record_ladder(capture, sizes, self._pad, self._run, "tokens")
        self._sizes = list(self._steps)
        return missing

    def _pad(self, size: int) -> None:
        """All tokens are padding."""
        words = array("q")
        self._append_places(words, [], [], [0], size)
        self._uploader.send(words, into=self._words)

    def _run(self, size: int) -> torch.Tensor:
        """From words to hidden states [T, C]."""
        state, rows = self._state, self._rows(size)
        slots, lens, starts = self._words[: 3 * rows + 1].split([rows, rows, rows + 1])
        ramp = self._ramp[:size]
        row = torch.searchsorted(starts[1:], ramp, right=True)  # of each token
        ends = (lens - starts[1:]).index_select(0, row)
        places = Places(
            slots=slots,
            rows=row,
            token_slots=slots.index_select(0, row),
            positions=ramp + ends,
        )
        numbers = HostNumbers(
            max_query_len=size,
            max_seq_len=self._longest,
            num_blocks=state.blocks_per_row,
            query_lens=DeviceOnly(),
            seq_lens=DeviceOnly(),
        )
        batch = batch_of(state, places, lens, starts.to(torch.int32), numbers)
        hidden = self._model.forward(batch)
        if not self._hidden.shape[0]:  # the first and largest, which is run before it is recorded
            self._hidden = torch.empty_like(hidden)
        return self._hidden[:size].copy_(hidden)

    # ---- every step ------------------------------------------------------------------------

    def replay(self, step: StepPlan) -> tuple[StepInputs, torch.Tensor] | None:
        """Launch `step`; its hidden states [T, C], which the next replay overwrites.  None if it
        has more tokens than any graph."""
        place = bisect_left(self._sizes, step.num_tokens)
        if place == len(self._sizes):
            return None
        size = self._sizes[place]
        rows = self._rows(size)
        if size - step.num_tokens > (rows - len(step.slots)) * self._longest:
            return None
        self._state.update(step, self._uploader)
        seq_lens = [c + n for c, n in zip(step.num_computed, step.num_scheduled, strict=True)]
        query_starts = list(accumulate(step.num_scheduled, initial=0))
        words = array("q")
        self._append_places(words, step.slots, seq_lens, query_starts, size)
        sampling = sum(step.samples)
        partial = 0 < sampling < len(seq_lens) and not self._state.padding.static
        if partial:
            pack_samples(step, seq_lens, query_starts, words)
        sent = self._uploader.send(words, into=self._words)
        recorded = self._steps[size]
        recorded.graph.replay()
        samples = None
        if sampling and self._state.padding.static:
            samples = self._padded(step, seq_lens, query_starts)
        elif sampling:
            count = len(seq_lens)
            samples = sample_rows(
                step,
                seq_lens,
                sent[:count],
                sent[rows : rows + count],
                sent[2 * rows : 2 * rows + count + 1],
                sent[3 * rows + 1 :].view(3, sampling) if partial else None,
                decode=False,
            )
        return StepInputs(query_starts=query_starts, samples=samples), recorded.result

    def _padded(self, step: StepPlan, seq_lens: list[int], query_starts: list[int]) -> SampleRows:
        """The rows that sample, sent apart from the rest, so that their length is theirs alone."""
        words, slots, positions = padded_samples(step, seq_lens, query_starts, self._state)
        sent = self._uploader.send(words).view(3, -1)
        return SampleRows(
            host_slots=slots,
            host_positions=positions,
            slots=sent[0],
            positions=sent[1],
            hidden=sent[2],
        )

    def _append_places(
        self,
        words: array[int],
        slots: list[int],
        seq_lens: list[int],
        query_starts: list[int],
        size: int,
    ) -> None:
        """Slots, lengths and starts of these sequences and of the padding."""
        left = self._rows(size) - len(slots)
        whole, rest = divmod(size - query_starts[-1], self._longest)
        padding = [self._longest] * whole + [rest] * (whole < left) + [0] * (left - whole - 1)
        words.fromlist(slots)
        words.fromlist([self._state.padding_slot] * left)
        words.fromlist(seq_lens)
        words.fromlist(padding)
        words.fromlist(query_starts[:-1])
        words.extend(accumulate(padding, initial=query_starts[-1]))

    @property
    def _longest(self) -> int:
        return self._state.row_length - 1
