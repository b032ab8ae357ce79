"""When requests come."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from allmetal.bench.load.records import Call


def arrivals(
    calls: Sequence[Call], *, rate: float | None, burstiness: float, seed: int
) -> list[float]:
    """Seconds after the beginning, rising.  A call's own time goes before `rate`.

    Gaps are gamma distributed of mean 1 / rate and shape `burstiness`, and are not stretched to
    meet the rate exactly: a short run has the chance of its process.
    """
    if all(call.at is not None for call in calls):
        return [call.at or 0.0 for call in calls]
    if rate is None or math.isinf(rate):
        return [0.0] * len(calls)
    chance = random.Random(f"arrivals {seed}")
    now, times = 0.0, []
    for _ in calls:
        times.append(now)
        now += _gap(chance, rate, burstiness)
    return times


def _gap(chance: random.Random, rate: float, burstiness: float) -> float:
    if math.isinf(burstiness):
        return 1 / rate
    return chance.gammavariate(burstiness, 1 / (rate * burstiness))
