"""Requests that wait for room, most urgent first."""

from __future__ import annotations

import heapq

from allmetal.config import Policy
from allmetal.engine.sequence import Sequence


class WaitingQueue:
    """A preempted sequence keeps its arrival order, so it comes back before later ones."""

    def __init__(self, policy: Policy) -> None:
        self._by_priority = policy == "priority"
        self._heap: list[tuple[int, int, Sequence]] = []
        self._members: set[Sequence] = set()

    def __len__(self) -> int:
        return len(self._members)

    def push(self, seq: Sequence) -> None:
        rank = seq.request.priority if self._by_priority else 0
        heapq.heappush(self._heap, (rank, seq.order, seq))
        self._members.add(seq)

    def head(self) -> Sequence | None:
        while self._heap and self._heap[0][2] not in self._members:
            heapq.heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def pop(self) -> Sequence:
        seq = self.head()
        assert seq is not None
        heapq.heappop(self._heap)
        self._members.discard(seq)
        return seq

    def remove(self, seq: Sequence) -> None:
        """Its place in the heap is cleared when it comes up."""
        self._members.discard(seq)
