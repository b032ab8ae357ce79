"""What processes use, from Linux's /proc."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

_TICKS = os.sysconf("SC_CLK_TCK")


def tree(root: int) -> Iterator[int]:
    """The process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        if stat := _stat(int(folder.name)):
            children.setdefault(int(stat[1]), []).append(int(folder.name))
    left = [root]
    while left:
        pid = left.pop()
        yield pid
        left += children.get(pid, [])


def peak_memory(root: int) -> int:
    """Bytes: the largest that each process of the tree was, added up."""
    total = 0
    for pid in tree(root):
        for line in _text(f"/proc/{pid}/status").splitlines():
            if line.startswith("VmHWM:"):
                total += int(line.split()[1]) * 1024
    return total


class Others:
    """`with Others() as others: ...`, then `others.cores`: how many cores the rest of the machine
    kept busy meanwhile."""

    cores = 0.0

    def __enter__(self) -> Others:
        self._begin = time.perf_counter(), _busy(), _used()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        begin, busy, used = self._begin
        took = time.perf_counter() - begin
        self.cores = max(0.0, (_busy() - busy - (_used() - used)) / took)


def _busy() -> float:
    """CPU seconds of the machine that were not idle."""
    words = [int(word) for word in _text("/proc/stat").split("\n", 1)[0].split()[1:9]]
    return (sum(words) - words[3] - words[4]) / _TICKS


def _used() -> float:
    """CPU seconds of this process and its descendants, ended ones included."""
    stats = [_stat(pid) for pid in tree(os.getpid())]
    return sum(sum(map(int, stat[11:15])) for stat in stats if stat) / _TICKS


def _stat(pid: int) -> list[str]:
    """The words of /proc/PID/stat from the state on; empty if it is gone."""
    return _text(f"/proc/{pid}/stat").rpartition(")")[2].split()


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
