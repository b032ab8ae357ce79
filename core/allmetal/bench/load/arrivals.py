"""When requests come."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

from allmetal.bench.load.records import Call


def arrivals(
    calls: Sequence[Call], *, rate: float | None, burstiness: float, seed: int
) -> list[float]:
    """Seconds after the beginning, rising.  A call's own time goes before `rate`.

    Gaps are gamma distributed with shape `burstiness`, all of them stretched alike so that together
    they meet the rate, as other load clients do: what is offered is what was asked for, also in a
    short run.
    """
    if all(call.at is not None for call in calls):
        return [call.at or 0.0 for call in calls]
    if rate is None or math.isinf(rate):
        return [0.0] * len(calls)
    chance = random.Random(f"arrivals {seed}")
    gaps = [_gap(chance, burstiness) for _ in calls[1:]]
    stretch = len(gaps) / rate / sum(gaps) if any(gaps) else 0.0
    return [stretch * time for time in itertools.accumulate(gaps, initial=0.0)]


def _gap(chance: random.Random, burstiness: float) -> float:
    """Of mean 1."""
    return 1.0 if math.isinf(burstiness) else chance.gammavariate(burstiness, 1 / burstiness)
