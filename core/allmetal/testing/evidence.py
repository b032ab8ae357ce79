"""A run of the kit as a file: what was tested, where, when, with what, and what came of it."""

from __future__ import annotations

import json
import os
import platform as python_platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from allmetal.bench.machine import commit
from allmetal.platform.capabilities import FEATURES, capability
from allmetal.platform.contract import DeviceInfo, Platform
from allmetal.platform.evidence import FORMAT, Tally, kind_of
from allmetal.platform.matrix import cell_of
from allmetal.testing.conformance.contract import MODEL
from allmetal.testing.kit import KitRun, Result
from allmetal.testing.speed import measure

_LIBRARIES = ("torch", "triton", "numpy")


def evidence_of(
    run: KitRun,
    platform: Platform,
    info: DeviceInfo,
    plugin: str,
    levels: Sequence[int],
    *,
    left_out: str = "",
    speed: bool = False,
) -> dict[str, Any]:
    """Plain values for json.  Opens the device once for its versions; with `speed`, times its
    kernels too.  `left_out`: which tests of `levels` were not run, in words."""
    device = platform.open(info)
    try:
        versions, advice = dict(device.versions()), device.advice(MODEL)
    finally:
        device.close()
    table = platform.capabilities(info)
    made: dict[str, Any] = {
        "format": FORMAT,
        "kind": kind_of(info.traits.get("evidence", "run")),
        "platform": platform.name,
        "plugin": plugin,
        "contract": platform.contract_version,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit(),
        "device": asdict(info) | {"traits": dict(info.traits)},
        "versions": _versions() | versions,
        "system": python_platform.platform(),
        "levels": sorted(levels),
        "left_out": left_out,
        "seconds": round(run.seconds, 1),
        "capabilities": {name: asdict(cell_of(capability(table, name))) for name in FEATURES},
        "correctness": _correctness(run.results),
    }
    if speed:
        dtype = advice.dtype or MODEL.dtype
        made["load_before_speed"] = os.getloadavg() if hasattr(os, "getloadavg") else None
        made["speed"] = [asdict(row) for row in measure(platform, info, dtype)]
    return made


def write_evidence(made: Mapping[str, Any], file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")


def _correctness(results: Sequence[Result]) -> dict[str, Any]:
    """Tallies by level, feature and family; each test's cases by what came of them; and why."""
    failures = [r for r in results if r.outcome == "failed"]
    return {
        "total": asdict(_tally(results)),
        "by_level": _by(results, lambda r: [str(r.level)]),
        "features": _by(results, lambda r: r.features),
        "families": _by(results, lambda r: [r.family] if r.family else []),
        "tests": _cases(results),
        "failures": [{"test": _name(r), "reason": r.reason} for r in failures],
        "skipped": dict(Counter(r.reason for r in results if r.outcome == "skipped").most_common()),
    }


def _by(
    results: Iterable[Result], keys: Callable[[Result], Iterable[str]]
) -> dict[str, dict[str, int]]:
    groups: dict[str, list[Result]] = {}
    for result in results:
        for key in dict.fromkeys(keys(result)):
            groups.setdefault(key, []).append(result)
    return {key: asdict(_tally(group)) for key, group in sorted(groups.items())}


def _tally(results: Iterable[Result]) -> Tally:
    counts = Counter(r.outcome for r in results)
    return Tally(passed=counts["passed"], failed=counts["failed"], skipped=counts["skipped"])


def _cases(results: Iterable[Result]) -> dict[str, dict[str, list[str]]]:
    """Test -> outcome -> its cases."""
    tests: dict[str, dict[str, list[str]]] = {}
    for r in results:
        tests.setdefault(r.test, {}).setdefault(r.outcome, []).append(r.case)
    return dict(sorted(tests.items()))


def _name(result: Result) -> str:
    return f"{result.test}[{result.case}]" if result.case else result.test


def _versions() -> dict[str, str]:
    from allmetal import __version__

    found = {"allmetal": __version__, "python": python_platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
