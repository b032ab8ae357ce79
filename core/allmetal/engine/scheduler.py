"""What runs next: one token budget a step, no phases.

A sequence asks for the tokens it has and has not computed: many for a prompt, one while decoding.
Running sequences are served first, in order; then waiting ones are admitted while tokens, slots
and blocks last.  When blocks run out the least urgent running sequence gives its own back and
waits to be computed again.

Steps are scheduled ahead of results (see `Sequence`).  A sequence that turns out to have stopped
may be in one more step, whose token is dropped.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from allmetal.cache.manager import KVCacheManager, NewBlocks
from allmetal.config import Policy
from allmetal.engine.queue import WaitingQueue
from allmetal.engine.sequence import Sequence
from allmetal.executor.contract import SequenceStart, StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """A step and the sequences that get a token from it, in the order of its results."""

    plan: StepPlan
    sampled: list[Sequence]
    sequences: list[Sequence]


@dataclass(slots=True)
class _Draft:
    """A step in the making."""

    budget: int
    starts: list[SequenceStart] = field(default_factory=list)
    sequences: list[Sequence] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    num_scheduled: list[int] = field(default_factory=list)
    num_computed: list[int] = field(default_factory=list)
    samples: list[bool] = field(default_factory=list)
    sampled: list[Sequence] = field(default_factory=list)
    new_blocks: list[tuple[int, int, int, list[int]]] = field(default_factory=list)
    masked: bool = False


class Scheduler:
    def __init__(
        self,
        cache: KVCacheManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        policy: Policy = "fcfs",
        whole_texts: bool = False,
    ) -> None:
        """`whole_texts`: a sequence is computed in one step, and none of it found in the cache."""
        self.cache = cache
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting = WaitingQueue(policy)
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self.paused = False  # what runs goes on, what waits waits
        self._whole_texts = whole_texts
        self._by_priority = policy == "priority"
        self._free_slots = list(reversed(range(max_num_seqs)))
        self._next_step = 0

    @property
    def num_free_slots(self) -> int:
        return len(self._free_slots)

    def add(self, seq: Sequence) -> None:
        seq.num_tokens = len(seq.token_ids)
        self.waiting.push(seq)

    def schedule(self) -> Scheduled | None:
        """The next step, or None if nothing can run before a result comes back."""
        draft = _Draft(self.max_num_batched_tokens)
        if self._by_priority and not self.paused:
            self._make_way()
        preempted = self._continue_running(draft)
        if not preempted and not self.paused:
            self._admit_waiting(draft)
        if not draft.slots:
            return None
        plan = StepPlan(
            step_id=self._next_step,
            starts=draft.starts,
            slots=draft.slots,
            num_scheduled=draft.num_scheduled,
            num_computed=draft.num_computed,
            samples=draft.samples,
            new_blocks=draft.new_blocks,
            num_tokens=self.max_num_batched_tokens - draft.budget,
            masked=draft.masked,
        )
        self._next_step += 1
        return Scheduled(plan=plan, sampled=draft.sampled, sequences=draft.sequences)

    # ---- running ---------------------------------------------------------------------------

    def _continue_running(self, draft: _Draft) -> bool:
        """Give each running sequence its tokens; whether any had to be preempted for it."""
        preempted = False
        index = 0
        running = self.running
        while index < len(running) and draft.budget:
            seq = running[index]
            wanted = seq.num_tokens - seq.num_computed
            # All it may have is on the way: the last token need not be computed.
            if wanted <= 0 or seq.num_tokens >= seq.max_tokens:
                index += 1
                continue
            count = wanted if wanted < draft.budget else draft.budget
            total = seq.num_computed + count
            if total > seq.tables.capacity:
                grown = self.cache.grow(seq.tables, total, seq.num_computed)
                if grown is None:
                    preempted = True
                    self._preempt(self._least_urgent(index))
                    continue
                self._note_blocks(draft, seq, grown)
            self._put(draft, seq, count, total)
            index += 1
        return preempted

    def _least_urgent(self, after: int) -> Sequence:
        """Among those not yet in this step."""
        candidates = self.running[after:]
        return max(candidates, key=lambda seq: seq.urgency) if self._by_priority else candidates[-1]

    def _preempt(self, seq: Sequence) -> None:
        self.num_preemptions += 1
        self._leave(seq)
        seq.num_computed = 0
        self.waiting.push(seq)

    # ---- waiting ---------------------------------------------------------------------------

    def _make_way(self) -> None:
        """Under the priority policy the least urgent running sequences are preempted for a more
        urgent waiting one that has no room."""
        while (seq := self.waiting.head()) is not None and not self._has_room(seq):
            victim = max(self.running, key=lambda other: other.urgency, default=None)
            if victim is None or victim.request.priority <= seq.request.priority:
                return
            self._preempt(victim)

    def _has_room(self, seq: Sequence) -> bool:
        room = self.cache.room_for(seq.tables, seq.num_tokens, self.max_num_batched_tokens)
        return bool(self._free_slots) and room <= self.cache.pool.num_free

    def _admit_waiting(self, draft: _Draft) -> None:
        while draft.budget and self._free_slots and (seq := self.waiting.head()) is not None:
            # A preempted one may have a token on the way, which it needs first.
            if seq.num_pending or not self._enter(draft, seq):
                return

    def _enter(self, draft: _Draft, seq: Sequence) -> bool:
        """Admit the waiting head if all its known tokens have room, so that it is not thrown out
        again half-way through its prompt."""
        cache, tables = self.cache, seq.tables
        wants_prompt_logprobs = seq.request.sampling.prompt_logprobs is not None
        # Logits of every prompt token are needed then, so none may come from the cache.
        alone = wants_prompt_logprobs or self._whole_texts
        cached = 0 if alone else cache.reuse(tables, seq.token_ids, seq.num_tokens)
        count = min(seq.num_tokens - cached, draft.budget)
        if self._whole_texts and count < seq.num_tokens:
            return False  # the next step has room
        total = cached + count
        room = cache.room_for(tables, seq.num_tokens, self.max_num_batched_tokens)
        if room > cache.pool.num_free or cache.grow(tables, total, cached) is None:
            cache.release(tables)
            return False
        cache.count_lookup(seq.num_tokens, cached)
        self.waiting.pop()
        self.running.append(seq)
        seq.slot = self._free_slots.pop()
        seq.num_computed = cached
        seq.num_cached = max(seq.num_cached, cached)
        if seq.queue_s < 0:
            seq.queue_s = time.perf_counter() - seq.arrived
        draft.starts.append(self._start(seq))
        for group, table in enumerate(tables.groups):
            draft.new_blocks.append((seq.slot, group, 0, list(table)))
        self._put(draft, seq, count, total)
        return True

    def _start(self, seq: Sequence) -> SequenceStart:
        return SequenceStart(
            slot=seq.slot,
            token_ids=list(seq.token_ids),
            num_prompt_tokens=seq.first_output_at,
            sampling=seq.request.sampling,
            stop_token_ids=tuple(sorted(seq.stop_ids)),
            seed=seq.seed,
            pooling=seq.request.pooling,
        )

    # ---- both ------------------------------------------------------------------------------

    def _note_blocks(self, draft: _Draft, seq: Sequence, grown: NewBlocks) -> None:
        for group, index, blocks in grown:
            draft.new_blocks.append((seq.slot, group, index, blocks))

    def _put(self, draft: _Draft, seq: Sequence, count: int, total: int) -> None:
        draft.budget -= count
        draft.sequences.append(seq)
        draft.slots.append(seq.slot)
        draft.num_scheduled.append(count)
        draft.num_computed.append(seq.num_computed)
        seq.num_computed = total
        samples = total == seq.num_tokens
        draft.samples.append(samples)
        if samples:
            seq.num_tokens += 1
            seq.num_pending += 1
            draft.sampled.append(seq)
            if seq.guide is not None:
                draft.masked = True
        if count > 1:
            self.name_blocks(seq)

    def name_blocks(self, seq: Sequence) -> None:
        """Let others find the blocks of tokens that are known and whose step is scheduled."""
        known = len(seq.token_ids)
        computed = seq.num_computed
        self.cache.name_full_blocks(
            seq.tables, seq.token_ids, known if known < computed else computed
        )

    def put_all_back(self) -> None:
        """All wait, and hold no block.  No step may be under way."""
        while self.running:
            self._preempt(self.running[-1])

    @property
    def can_run(self) -> bool:
        return bool(self.running) or not self.paused

    def finish(self, seq: Sequence) -> None:
        """Give back what the sequence holds.  A step in flight may still write to its blocks:
        steps run in order, so that happens before anyone else's."""
        if seq.slot < 0:
            self.waiting.remove(seq)
        else:
            self._leave(seq)

    def _leave(self, seq: Sequence) -> None:
        self.running.remove(seq)
        self.cache.release(seq.tables)
        self._free_slots.append(seq.slot)
        seq.slot = -1
