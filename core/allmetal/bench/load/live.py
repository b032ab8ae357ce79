"""What a terminal shows while a measurement runs."""

from __future__ import annotations

import statistics
import time
from collections import deque

from tqdm import tqdm

from allmetal.bench.load.drive import Run
from allmetal.bench.load.records import Record

_RECENT = 50


class Live:
    """A bar on standard error, where that is a terminal."""

    def __init__(self, total: int, run: Run) -> None:
        self._run = run
        self._bar = tqdm(total=total, unit="request", leave=False, disable=None)
        self._ttft: deque[float] = deque(maxlen=_RECENT)
        self._tokens = self._failed = 0

    def __call__(self, record: Record) -> None:
        if record.error is None:
            self._ttft.append(record.ttft)
            self._tokens += record.num_output
        else:
            self._failed += 1
        self._bar.set_postfix_str(self._said(), refresh=False)
        self._bar.update()

    def close(self) -> None:
        self._bar.close()

    def _said(self) -> str:
        seconds = max(1e-9, time.perf_counter() - self._run.begin)
        parts = [f"{self._tokens / seconds:,.0f} tokens/s"]
        parts.append(f"{len(self._run.records) - int(self._bar.n) - 1} open")
        if self._ttft:
            parts.append(f"ttft {statistics.median(self._ttft) * 1e3:,.0f} ms")
        if self._failed:
            parts.append(f"{self._failed} failed")
        return ", ".join(parts)
