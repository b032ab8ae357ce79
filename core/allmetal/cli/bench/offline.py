"""`allmetal bench latency|throughput MODEL`: figures of the engine, offline."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from allmetal.bench.settings import LatencySettings, ThroughputSettings
from allmetal.cli.options import add_options, engine_options, given
from allmetal.config import EngineConfig


def add_arguments(parser: argparse.ArgumentParser, kind: str) -> None:
    parser.add_argument("model", metavar="MODEL", help="a folder, a .gguf file, or a hub name")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write everything there too")
    add_options(parser, _settings(kind), group="workload")
    add_options(parser, EngineConfig, skip=("model",))


def _settings(kind: str) -> type[LatencySettings] | type[ThroughputSettings]:
    return LatencySettings if kind == "latency" else ThroughputSettings


def execute(args: argparse.Namespace) -> int:
    config = EngineConfig(**engine_options(args))
    kind = _settings(args.kind)
    settings = kind(**given(args, kind))
    from allmetal.bench.latency import measure_latency
    from allmetal.bench.report import environment, report
    from allmetal.bench.throughput import measure_throughput
    from allmetal.engine.engine import Engine

    engine = Engine.from_config(config)
    try:
        around = environment(engine, ["allmetal", *sys.argv[1:]])
        if isinstance(settings, LatencySettings):
            figures = measure_latency(engine, settings)
        else:
            figures = measure_throughput(engine, settings)
        made = report(
            args.kind,
            engine,
            model=config.model,
            settings={k: v for k, v in asdict(settings).items() if v is not None},
            figures=figures,
            environment=around,
        )
    finally:
        engine.close()
    print(made.to_text())
    if args.json is not None:
        args.json.write_text(json.dumps(made.to_json(), indent=1) + "\n")
    return 0
