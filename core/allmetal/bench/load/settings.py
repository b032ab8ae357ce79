"""The workload of `bench serve`.  Apart from what measures, so that help needs none of it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias

from allmetal.config import option
from allmetal.errors import ConfigError

Dataset: TypeAlias = Literal["random", "prefix", "sharegpt", "trace"]
Endpoint: TypeAlias = Literal["completions", "chat"]
LATENCIES = ("ttft", "tpot", "itl", "e2e")
FROM_FILES = ("sharegpt", "trace")


def parse_field(text: str) -> tuple[str, Any]:
    """`NAME=JSON`; what is no JSON is a text."""
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """Closed loop: `concurrency` clients, each asking again when answered.  Open loop: `rate`."""

    dataset: Dataset = option(
        "random",
        "random: prompts of random words; prefix: those after a shared beginning; sharegpt: "
        "conversations of a file; trace: requests of a file, at its times",
        group="requests",
    )
    file: str | None = option(None, "the file of sharegpt and trace", group="requests")
    requests: int = option(100, "requests that are timed", group="requests")
    input_len: int = option(256, "tokens of each prompt", group="requests")
    output_len: int = option(64, "tokens generated for each prompt", group="requests")
    length_spread: float = option(
        0.0, "lengths vary evenly by this share, up and down", group="requests"
    )
    prefix_len: int = option(512, "prefix: tokens of the shared beginnings", group="requests")
    prefixes: int = option(1, "prefix: how many shared beginnings there are", group="requests")
    tokenizer: str | None = option(
        None,
        "folder, file or hub name: prompts are token ids of exact lengths; default: words, of "
        "lengths that the server's own counts are used to meet",
        group="requests",
    )
    workload_seed: int = option(0, "seed of prompts, lengths and arrivals", group="requests")

    rate: float | None = option(
        None,
        "requests that come in a second, answered or not (open loop); inf: all at once; default: "
        "closed loop",
        group="arrivals",
    )
    burstiness: float = option(
        1.0,
        "shape of the gamma distribution between arrivals: 1 is a Poisson process, less comes in "
        "bursts, inf evenly",
        group="arrivals",
    )
    concurrency: int | None = option(
        None,
        "requests open at once; default: 16 in a closed loop, else without limit",
        group="arrivals",
    )
    trace_unit: Literal["s", "ms"] = option("ms", "unit of a trace's timestamps", group="arrivals")
    speedup: float = option(1.0, "a trace is replayed this many times as fast", group="arrivals")
    warmup: int = option(8, "requests before them that are not timed", group="arrivals")

    endpoint: Endpoint = option("completions", "which API is asked", group="asking")
    model: str | None = option(None, "default: the first that the server lists", group="asking")
    api_key: str | None = option(None, "sent as a bearer token", group="asking")
    timeout: float = option(600.0, "seconds until a request has failed", group="asking")
    temperature: float = option(0.0, "of each request", group="asking")
    ignore_eos: bool = option(
        True, "ask for the full length; off for servers that refuse it", group="asking"
    )
    field: Mapping[str, Any] = option(
        {},
        "more of the request's body; may be given several times",
        metavar="NAME=JSON",
        parse=parse_field,
        group="asking",
    )
    goodput: Mapping[str, float] = option(
        {},
        f"count requests that keep within milliseconds of {', '.join(LATENCIES)}; may be given "
        "several times",
        metavar="NAME=MS",
        group="asking",
    )

    def __post_init__(self) -> None:
        counts = (self.requests, self.input_len, self.output_len, self.prefixes, self.prefix_len)
        if min(counts) < 1 or self.warmup < 0 or (self.concurrency or 1) < 1:
            raise ConfigError("counts and lengths must be positive")
        if not 0 <= self.length_spread < 1:
            raise ConfigError(f"length_spread must be in [0, 1), not {self.length_spread}")
        for name in ("rate", "burstiness", "speedup", "timeout"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} must be positive, not {value}")
        if self.dataset in FROM_FILES and self.file is None:
            raise ConfigError(f"{self.dataset} is read from a file", hint="--file FILE")
        if self.dataset not in FROM_FILES and self.file is not None:
            raise ConfigError(
                f"{self.dataset} reads no file", hint=f"--dataset {' or '.join(FROM_FILES)}"
            )
        if self.dataset == "trace" and self.rate is not None:
            raise ConfigError("a trace brings its own arrivals", hint="--speedup, not --rate")
        if unknown := set(self.goodput) - set(LATENCIES):
            raise ConfigError(
                f"there is no latency {min(unknown)!r}", hint=f"one of {', '.join(LATENCIES)}"
            )

    @property
    def open_loop(self) -> bool:
        """Whether requests come at times of their own."""
        return self.rate is not None or self.dataset == "trace"

    @property
    def limit(self) -> int | None:
        """Requests open at once."""
        return self.concurrency if self.open_loop else self.concurrency or 16

    def told(self) -> dict[str, object]:
        """What a report keeps: neither a secret nor what does not apply; infinity as text."""
        loop = {"rate", "burstiness"} if self.rate is not None else set()
        kept = {
            "random": {"input_len", "output_len", "length_spread"},
            "prefix": {"input_len", "output_len", "length_spread", "prefix_len", "prefixes"},
            "sharegpt": {"file"},
            "trace": {"file", "trace_unit", "speedup"},
        }[self.dataset]
        kept |= loop | {"dataset", "requests", "workload_seed", "warmup", "endpoint", "temperature"}
        kept |= {"ignore_eos", "field", "goodput", "tokenizer"}
        values = {name: value for name, value in _fields(self).items() if name in kept}
        values["concurrency"] = self.limit
        return {name: _plain(value) for name, value in values.items() if value not in (None, {})}


def _fields(settings: LoadSettings) -> dict[str, Any]:
    """Fields by name; `asdict` cannot copy read-only mappings."""
    return {f.name: getattr(settings, f.name) for f in fields(settings)}


def _plain(value: object) -> object:
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    return dict(value) if isinstance(value, Mapping) else value
