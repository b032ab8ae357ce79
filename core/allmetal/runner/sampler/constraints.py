"""Which tokens may come: allowed ids, bad words, bias, and minimum length.

What a sequence brings is kept per slot; what a set of rows needs together is put together once
and reused for as long as the set stays.  All edits are in place, and only at the rows' entries.

Legend: R rows of logits, V vocabulary, W bad words, N tokens before a bad word's last.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress

import numpy as np
import torch

from allmetal.executor.contract import SequenceStart
from allmetal.runner.state import SequenceState
from allmetal.runner.transfer import Uploader

_FORBIDDEN = float("-inf")
_ANY = -1  # stands before bad words that are shorter than the longest


@dataclass(slots=True, kw_only=True)
class SlotConstraints:
    """One sequence's.  Ids outside the vocabulary have no logit and are left out."""

    slot: int
    allowed: torch.Tensor | None
    bias_ids: torch.Tensor | None
    bias: torch.Tensor | None
    held_back: torch.Tensor | None  # ids that may not come before `free_from`
    free_from: int
    bad_words: tuple[tuple[int, ...], ...]


def slot_constraints(start: SequenceStart, vocab_size: int, uploader: Uploader) -> SlotConstraints:
    sampling = start.sampling
    known = range(vocab_size)
    allowed = sampling.allowed_token_ids
    bias = {i: value for i, value in sampling.logit_bias.items() if i in known}
    stops = [i for i in start.stop_token_ids if i in known] if sampling.min_tokens else []

    def ids(values: Sequence[int]) -> torch.Tensor:
        return uploader.send(array("q", values))

    reals = np.array(list(bias.values()), dtype=np.float64).view(np.int64)
    return SlotConstraints(
        slot=start.slot,
        allowed=None if allowed is None else ids([i for i in allowed if i in known]),
        bias_ids=ids(list(bias)) if bias else None,
        bias=ids(reals.tolist()).view(torch.float64).to(torch.float32) if bias else None,
        held_back=ids(stops) if stops else None,
        free_from=start.num_prompt_tokens + sampling.min_tokens,
        bad_words=tuple(
            word for word in sampling.bad_word_ids if word and all(i in known for i in word)
        ),
    )


@dataclass(slots=True, kw_only=True)
class _BadWords:
    """Words that end in `last` where the tokens before match `before`, padded left with _ANY."""

    before: torch.Tensor  # [W, N] int64
    rows: torch.Tensor  # [W] int64
    slots: torch.Tensor  # [W] int64
    last: torch.Tensor  # [W] int64


@dataclass(frozen=True, slots=True)
class _Held:
    """Places that stay forbidden while the row's next position is below `free_from`."""

    row: int
    free_from: int
    places: torch.Tensor


@dataclass(slots=True, kw_only=True)
class ConstraintSet:
    """The constraints of R rows, put together.  Places index the flattened logits [R * V]."""

    allowed_rows: torch.Tensor | None = None
    allowed_places: torch.Tensor | None = None
    bias_places: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    bad_words: _BadWords | None = None
    held: list[_Held] = field(default_factory=list)
    _held_now: tuple[bool, ...] = ()
    _held_places: torch.Tensor | None = None

    def apply(
        self,
        logits: torch.Tensor,
        state: SequenceState,
        positions: torch.Tensor,
        host_positions: list[int],
    ) -> None:
        """Edit logits [R, V], contiguous.  `positions` [R]: where each row's token will stand."""
        flat = logits.view(-1)
        if self.allowed_rows is not None and self.allowed_places is not None:
            kept = flat.index_select(0, self.allowed_places)
            logits.index_fill_(0, self.allowed_rows, _FORBIDDEN)
            flat.index_copy_(0, self.allowed_places, kept)
        if self.bad_words is not None:
            _forbid(self.bad_words, logits, state, positions)
        if self.bias_places is not None and self.bias is not None:
            flat.index_add_(0, self.bias_places, self.bias)
        if self.held and (places := self._places_held(host_positions)) is not None:
            flat.index_fill_(0, places, _FORBIDDEN)

    def _places_held(self, host_positions: list[int]) -> torch.Tensor | None:
        now = tuple(host_positions[held.row] < held.free_from for held in self.held)
        if now != self._held_now:
            self._held_now = now
            parts = [held.places for held in compress(self.held, now)]
            self._held_places = torch.cat(parts) if parts else None
        return self._held_places


def _forbid(
    words: _BadWords, logits: torch.Tensor, state: SequenceState, positions: torch.Tensor
) -> None:
    """Forbid the last token of each word whose tokens before are the sequence's last ones."""
    width = words.before.shape[1]
    offsets = torch.arange(-width, 0, device=logits.device)
    places = positions.index_select(0, words.rows)[:, None] + offsets  # [W, N]
    inside = places >= 0
    places = places.clamp(min=0) + (words.slots * state.row_length)[:, None]
    held = state.flat_tokens.index_select(0, places.view(-1)).view(places.shape)
    matches = ((words.before == _ANY) | (inside & (held == words.before))).all(dim=1)
    verdict = torch.where(matches, _FORBIDDEN, -_FORBIDDEN).to(logits.dtype)
    # The least of logit and verdict: two words with one last token cannot undo each other.
    flat = logits.view(-1)
    flat.scatter_reduce_(0, words.rows * logits.shape[1] + words.last, verdict, "amin")


def combine(
    rows: Sequence[tuple[int, SlotConstraints]], vocab_size: int, uploader: Uploader
) -> ConstraintSet:
    """The set of these (row, constraints); work and uploads grow with the rows given only."""
    made = ConstraintSet()
    allowed = [(row, each.allowed) for row, each in rows if each.allowed is not None]
    if allowed:
        made.allowed_rows = uploader.send(array("q", [row for row, _ in allowed]))
        made.allowed_places = torch.cat([ids + row * vocab_size for row, ids in allowed])
    biased = [
        (each.bias_ids + row * vocab_size, each.bias)
        for row, each in rows
        if each.bias_ids is not None and each.bias is not None
    ]
    if biased:
        made.bias_places = torch.cat([places for places, _ in biased])
        made.bias = torch.cat([bias for _, bias in biased])
    made.held = [
        _Held(row, each.free_from, each.held_back + row * vocab_size)
        for row, each in rows
        if each.held_back is not None
    ]
    made.bad_words = _bad_words(rows, uploader)
    return made


def _bad_words(rows: Sequence[tuple[int, SlotConstraints]], uploader: Uploader) -> _BadWords | None:
    words = [(row, each.slot, word) for row, each in rows for word in each.bad_words]
    if not words:
        return None
    width = max(len(word) for _, _, word in words) - 1
    pack = array("q")
    for _, _, word in words:
        pack.extend((_ANY,) * (width + 1 - len(word)) + word[:-1])
    pack.extend(row for row, _, _ in words)
    pack.extend(slot for _, slot, _ in words)
    pack.extend(word[-1] for _, _, word in words)
    count = len(words)
    before, row_ids, slots, last = uploader.send(pack).split([count * width, count, count, count])
    return _BadWords(before=before.view(count, width), rows=row_ids, slots=slots, last=last)
