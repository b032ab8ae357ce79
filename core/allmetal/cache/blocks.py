"""The pool: which blocks are free, how often each is shared, and what content each holds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

NULL_BLOCK = 0


class BlockPool:
    """Blocks 1 .. num_blocks - 1; block 0 is the null block and never given away.

    A block with content that may be found again keeps its key when its last user leaves, and
    stays findable until it is taken for something new, least recently used first.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self._users = [0] * num_blocks
        self._key: list[bytes | None] = [None] * num_blocks
        self._by_key: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of the blocks that sequences hold."""
        usable = self.num_blocks - 1
        return 1 - len(self._free) / usable if usable else 1.0

    def take(self, count: int) -> list[int]:
        """`count` free blocks, which the caller has made sure are there."""
        taken = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            self._forget(block)
            self._users[block] = 1
            taken.append(block)
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """One more user for each; a free block leaves the free list with its content."""
        for block in blocks:
            if self._users[block] == 0:
                del self._free[block]
            self._users[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """One user less for each.  Give the last block of a sequence first: it is evicted first."""
        for block in blocks:
            self._users[block] -= 1
            if self._users[block] == 0:
                self._free[block] = None
                if self._key[block] is None:
                    self._free.move_to_end(block, last=False)

    def find(self, key: bytes) -> int | None:
        return self._by_key.get(key)

    def name(self, block: int, key: bytes) -> None:
        """Make the block findable.  The first block of a content stays the one that is found."""
        if key not in self._by_key:
            self._by_key[key] = block
            self._key[block] = key

    def forget_all(self) -> None:
        """No content is found again; blocks in use stay in use."""
        self._by_key.clear()
        self._key = [None] * self.num_blocks

    def _forget(self, block: int) -> None:
        key = self._key[block]
        if key is not None:
            del self._by_key[key]
            self._key[block] = None
