"""Why two results may not be compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from allmetal.bench.compare.runs import Result
from allmetal.errors import ConfigError

_MACHINE = ("processor", "cores", "device", "arch")
_SOFTWARE = ("commit", "python", "system")


class NotComparableError(ConfigError):
    """Results differ in more than what is compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """`values`: one a result.  One that does not forbid comparing is what may explain it."""

    what: str
    values: tuple[str, ...]
    forbids: bool


def differences(results: Sequence[Result], *, varied: Sequence[str] = ()) -> list[Difference]:
    """Those that forbid comparing first.  `varied`: settings that are meant to differ.

    Raises NotComparableError for different benchmarks: their figures have nothing in common.
    """
    kinds = {result.benchmark for result in results}
    if len(kinds) > 1:
        raise NotComparableError(f"these are different benchmarks: {', '.join(sorted(kinds))}")
    found: list[Difference] = []

    def look(prefix: str, of: Callable[[Result], Mapping[str, Any]], *, forbids: bool) -> None:
        tables = [of(result) for result in results]
        for name in dict.fromkeys(name for table in tables for name in table):
            values = tuple(_shown(table.get(name)) for table in tables)
            if len(set(values)) > 1 and name not in varied:
                found.append(Difference(what=prefix + name, values=values, forbids=forbids))

    look("", lambda r: {"model": r.model}, forbids=True)
    look("setting ", lambda r: r.settings, forbids=True)
    look("machine: ", _machine, forbids=True)
    look("plan: ", _plan, forbids=True)
    look("", lambda r: {k: r.environment.get(k) for k in _SOFTWARE}, forbids=False)
    look("", lambda r: r.environment.get("versions", {}), forbids=False)
    return found


def check(found: Sequence[Difference]) -> None:
    """Raises NotComparableError if one of them forbids it."""
    lines = [f"  {d.what}: {' / '.join(d.values)}" for d in found if d.forbids]
    if lines:
        raise NotComparableError(
            "\n".join(["these results differ in more than what is compared:", *lines]),
            hint="--anyway, if that is what you compare",
        )


def _machine(result: Result) -> Mapping[str, Any]:
    table = {name: result.environment.get(name) for name in _MACHINE}
    device = (result.plan or {}).get("device", {})
    return table | {"device": device.get("name"), "memory": device.get("total_memory")}


def _plan(result: Result) -> Mapping[str, Any]:
    """What was got; who asked and why is no difference."""
    if result.plan is None:
        return {"plan": "unknown"}
    got = {row["feature"]: row["got"] for row in result.plan.get("decisions", ())}
    return {"plan": "known", "platform": result.plan.get("platform"), **got}


def _shown(value: Any) -> str:
    return "–" if value is None else str(value)
