"""`allmetal explain MODEL`: plan, kernels and memory, before anything is loaded."""

from __future__ import annotations

import argparse
import json

from allmetal.cli.options import add_options, engine_options
from allmetal.config import EngineConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a folder, a .gguf file, or a hub name")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_options(parser, EngineConfig, skip=("model",))


def execute(args: argparse.Namespace) -> int:
    """Exit code 1 if the cache would not fit."""
    config = EngineConfig(**engine_options(args))
    from allmetal.runner.explain import explain

    explanation = explain(config)
    print(json.dumps(explanation.to_json(), indent=1) if args.json else explanation.to_text())
    return 1 if explanation.memory.problem else 0
