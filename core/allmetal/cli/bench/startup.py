"""`allmetal bench startup MODEL`: from nothing to the first token."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from allmetal.cli.bench.serve import hidden


def add_arguments(parser: argparse.ArgumentParser, _: str) -> None:
    parser.add_argument("--repetitions", metavar="N", type=int, default=3, help="servers started")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write everything there too")
    parser.add_argument("model", metavar="MODEL", help="a folder, a .gguf file, or a hub name")
    parser.add_argument(
        "options", metavar="OPTIONS", nargs=argparse.REMAINDER, help="more for allmetal serve"
    )


def execute(args: argparse.Namespace) -> int:
    from allmetal.bench.load.startup import measure_startup

    words = [args.model, *(word for word in args.options if word != "--")]
    command = ["allmetal", *hidden(sys.argv[1:])]
    made = measure_startup(words, repetitions=args.repetitions, command=command)
    if args.json is not None:
        args.json.write_text(json.dumps(made.to_json(), indent=1) + "\n")
    print(made.to_text())
    return 0
