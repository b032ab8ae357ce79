"""The results that benchmarks write, read again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allmetal.errors import ConfigError

_LOWER_IS_BETTER = {"ms", "s", "ms/token", "MiB"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One figure of one run.  `quantiles` (0 to 100 %) only where it is spread over requests."""

    unit: str
    median: float
    values: tuple[float, ...] = ()
    mean: float | None = None
    std: float = 0.0
    count: int = 0
    p99: float | None = None
    quantiles: tuple[float, ...] = ()

    @property
    def lower_is_better(self) -> bool:
        return self.unit in _LOWER_IS_BETTER


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A file of a benchmark."""

    name: str
    benchmark: str
    date: str
    model: str
    settings: Mapping[str, Any]
    figures: Mapping[str, Measured]
    environment: Mapping[str, Any]
    plan: Mapping[str, Any] | None
    warnings: tuple[str, ...] = ()
    timeline: Mapping[str, Any] | None = None


def read_results(paths: Sequence[Path]) -> list[Result]:
    """Named as short as tells them apart.  Raises ConfigError for what is no result."""
    names = [path.stem for path in paths]
    if len(set(names)) < len(names):
        names = [f"{path.parent.name}/{path.stem}" for path in paths]
    if len(set(names)) < len(names):
        names = [str(path) for path in paths]
    return [_read(path, name) for path, name in zip(paths, names, strict=True)]


def _read(path: Path, name: str) -> Result:
    try:
        made = json.loads(path.read_text(encoding="utf-8"))
        return Result(
            name=name,
            benchmark=made["benchmark"],
            date=made["date"],
            model=made["model"],
            settings=made["settings"],
            figures={key: _measured(value) for key, value in made["figures"].items()},
            environment=made["environment"],
            plan=made["plan"],
            warnings=tuple(made.get("warnings", ())),
            timeline=made.get("timeline"),
        )
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path} is no result of a benchmark: {type(error).__name__} {error}",
            hint="files of allmetal bench ... --json FILE",
        ) from None


def _measured(value: Mapping[str, Any]) -> Measured:
    return Measured(
        unit=value["unit"],
        median=value["median"],
        values=tuple(value.get("all", ())),
        mean=value.get("mean"),
        std=value.get("std", 0.0),
        count=value.get("count", 0),
        p99=value.get("p99"),
        quantiles=tuple(value.get("quantiles", ())),
    )
