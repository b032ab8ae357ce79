"""Every combination of some settings, each measured once and kept."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

from allmetal.bench.load.client import ServerError
from allmetal.bench.load.hosted import hosted
from allmetal.bench.load.measure import measure_serving
from allmetal.bench.load.settings import LoadSettings
from allmetal.config import EngineConfig, ServerConfig
from allmetal.errors import ConfigError

_OF_LOAD = {field.name for field in fields(LoadSettings)}
_OF_SERVER = {field.name for kind in (EngineConfig, ServerConfig) for field in fields(kind)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One combination.  `load` and `server`: setting -> value as it was typed."""

    load: Mapping[str, str]
    server: Mapping[str, str]

    @property
    def name(self) -> str:
        """Of its file, and in tables."""
        pairs = [f"{key}={value}" for key, value in {**self.server, **self.load}.items()]
        return ",".join(pairs).replace("/", "_")


def grid(vary: Mapping[str, Sequence[str]]) -> list[Point]:
    """Raises ConfigError for a name that is no setting.

    What the server is started with changes least often.
    """
    for name in vary:
        if name not in _OF_LOAD | _OF_SERVER:
            raise ConfigError(
                f"there is no setting {name!r}",
                hint="settings of bench serve, as in rate=1,2,4; with --serve also the server's",
            )
    server = [name for name in vary if name not in _OF_LOAD]
    load = [name for name in vary if name in _OF_LOAD]
    outer = itertools.product(*(vary[name] for name in server))
    inner = list(itertools.product(*(vary[name] for name in load)))
    return [
        Point(
            server=dict(zip(server, these, strict=True)), load=dict(zip(load, those, strict=True))
        )
        for these in outer
        for those in inner
    ]


def with_values(settings: LoadSettings, values: Mapping[str, str]) -> LoadSettings:
    """Raises ConfigError for a value that is none of its setting."""
    hints = get_type_hints(LoadSettings)
    return replace(settings, **{k: _parsed(k, v, hints[k]) for k, v in values.items()})


def _parsed(name: str, text: str, hint: Any) -> Any:
    kind = next((k for k in (int, float, bool, str) if k is hint or k in get_args(hint)), str)
    words = {"true": True, "on": True, "false": False, "off": False}
    try:
        return words[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError):
        raise ConfigError(f"{text!r} is no value of {name}") from None


def sweep(
    folder: Path,
    points: Sequence[Point],
    settings: LoadSettings,
    *,
    url: str | None,
    serve: Sequence[str],
    command: Sequence[str],
    tell: Callable[[str], None],
) -> list[Path]:
    """Measure what is not there yet.  Gives the files of all points that could be measured.

    Raises ConfigError before anything is measured: if a point's settings contradict each other,
    or a file in `folder` is of another workload.
    """
    wanted = {point.name: with_values(settings, point.load) for point in points}
    folder.mkdir(parents=True, exist_ok=True)
    files = {point.name: folder / f"{point.name}.json" for point in points}
    for name, file in files.items():
        if file.exists():
            _check_same(file, wanted[name])
    for options, group in itertools.groupby(points, key=lambda point: dict(point.server)):
        missing = [point for point in group if not files[point.name].exists()]
        if not missing:
            continue
        with _server(url, serve, options, folder) as where:
            for point in missing:
                tell(f"{point.name} ...")
                try:
                    result = measure_serving(where, wanted[point.name], command)
                except ServerError as error:
                    tell(f"{point.name} failed: {error.message}")
                    continue
                _write(files[point.name], result.to_json())
    return [file for file in files.values() if file.exists()]


def _check_same(file: Path, settings: LoadSettings) -> None:
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))["settings"]
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{file} is no result", hint=f"remove it: rm {file}") from None
    now = settings.told()
    other = [n for n in kept.keys() | now.keys() if kept.get(n) != now.get(n)]
    if other:
        raise ConfigError(
            f"{file} was measured with another {', '.join(sorted(other))}",
            hint="another folder for another workload",
        )


def _write(file: Path, made: Mapping[str, Any]) -> None:
    """Whole or not at all: a sweep that is interrupted goes on where it was."""
    part = file.with_suffix(".part")
    part.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    part.replace(file)


@contextmanager
def _server(
    url: str | None, serve: Sequence[str], options: Mapping[str, str], folder: Path
) -> Iterator[str]:
    if not serve:
        assert url is not None
        yield url
        return
    words = [*serve, *(w for k, v in options.items() for w in (f"--{k.replace('_', '-')}", v))]
    name = ",".join(f"{k}={v}" for k, v in options.items()) or "server"
    with hosted(words, folder / f"{name.replace('/', '_')}.log") as running:
        yield running.url


def summary(files: Sequence[Path], varied: Sequence[str]) -> str:
    """A line a point: what was varied, throughput and latencies."""
    heads = [*varied, "requests/s", "tokens/s", "ttft p50", "ttft p99", "tpot p50", "e2e p99"]
    lines = [heads]
    for file in files:
        made = json.loads(file.read_text(encoding="utf-8"))
        values = dict(pair.split("=", 1) for pair in file.stem.split(","))
        figures = made["figures"]
        cells = [values.get(name, "") for name in varied]
        for name, key in _SHOWN:
            value = figures.get(name, {}).get(key, math.nan)
            cells.append(f"{value:,.2f}")
        lines.append(cells)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )


_SHOWN = (
    ("requests", "median"),
    ("output", "median"),
    ("ttft", "median"),
    ("ttft", "p99"),
    ("tpot", "median"),
    ("e2e", "p99"),
)
