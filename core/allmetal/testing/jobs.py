"""The kit in several processes at once: compiling kernels keeps many cores busy, a device hardly.

Tests are dealt out in turn, and their results put together in the order of one process.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

from allmetal.errors import PlatformError
from allmetal.platform.contract import DeviceInfo
from allmetal.platform.discover import discover
from allmetal.testing.kit import KitRun, Part, run_kit


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    platform: str
    levels: tuple[int, ...]
    select: str
    device: DeviceInfo
    part: Part


def run_kit_in(
    jobs: int, platform: str, *, levels: Collection[int], select: str, device: DeviceInfo
) -> KitRun:
    """`run_kit` of the installed platform of this name.  What the processes print is not shown."""
    began = time.monotonic()
    todo = [
        _Job(
            platform=platform,
            levels=tuple(levels),
            select=select,
            device=device,
            part=Part(number=number, of=jobs),
        )
        for number in range(jobs)
    ]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        runs = list(pool.map(_run, todo))
    # Round robin: the n-th of each process, one after the other.
    most = max((len(run.results) for run in runs), default=0)
    results = [run.results[at] for at in range(most) for run in runs if at < len(run.results)]
    # Fewer tests than processes leave some without any.
    problems = [run.problem for run in runs if run.problem and not run.is_empty]
    if not results:
        problems = [run.problem for run in runs]
    return KitRun(
        results=tuple(results),
        seconds=time.monotonic() - began,
        problem=problems[0] if problems else "",
    )


def _run(job: _Job) -> KitRun:
    with open(os.devnull, "w") as nothing:
        sys.stdout = nothing
        for found in discover(only={job.platform}):
            if found.platform is not None:
                return run_kit(
                    found.platform,
                    levels=job.levels,
                    select=job.select,
                    device=job.device,
                    part=job.part,
                )
    raise PlatformError(f"there is no platform {job.platform!r} in another process")
