"""`allmetal bench serve URL`: a server under load."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from allmetal.bench.load.settings import LoadSettings
from allmetal.cli.options import add_options, given

URL = "http://127.0.0.1:8000"


def add_arguments(parser: argparse.ArgumentParser, _: str) -> None:
    parser.add_argument(
        "url", metavar="URL", nargs="?", default=URL, help=f"where it listens (default: {URL})"
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write everything there too")
    add_options(parser, LoadSettings)


def execute(args: argparse.Namespace) -> int:
    """1 where no request succeeded."""
    settings = LoadSettings(**given(args, LoadSettings))
    from allmetal.bench.load.measure import measure_serving

    result = measure_serving(args.url, settings, ["allmetal", *hidden(sys.argv[1:])])
    if args.json is not None:
        args.json.write_text(json.dumps(result.to_json(), indent=1) + "\n")
    print(result.to_text())
    return 0 if result.good else 1


def hidden(words: list[str]) -> list[str]:
    """A command line without its key."""
    shown, secret = [], False
    for word in words:
        name, equals, _ = word.partition("=")
        is_key = name == "--api-key"
        shown.append("..." if secret else f"{name}=..." if is_key and equals else word)
        secret = is_key and not equals
    return shown
