"""`allmetal bench sweep FOLDER`: a server under many loads, or with many options."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from allmetal.bench.load.settings import LoadSettings
from allmetal.cli.bench.serve import URL, hidden
from allmetal.cli.options import add_options, given


def add_arguments(parser: argparse.ArgumentParser, _: str) -> None:
    parser.add_argument(
        "folder", metavar="FOLDER", type=Path, help="where each result is kept; go on with it later"
    )
    parser.add_argument(
        "--vary",
        metavar="NAME=A,B,..",
        type=_values,
        action="append",
        required=True,
        help="a setting of bench serve, or with --serve of the server, and its values; may be "
        "given several times, for every combination",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--url", default=URL, help=f"where a server listens (default: {URL})")
    where.add_argument(
        "--serve",
        metavar="WORDS",
        type=shlex.split,
        default=[],
        help='start one: the words after "allmetal serve", in quotes',
    )
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a page with plots there")
    add_options(parser, LoadSettings)


def _values(text: str) -> tuple[str, list[str]]:
    name, _, values = text.partition("=")
    found = [value for value in values.split(",") if value]
    if not name or not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=A,B,..")
    return name.replace("-", "_"), found


def execute(args: argparse.Namespace) -> int:
    """1 where a point could not be measured."""
    settings = LoadSettings(**given(args, LoadSettings))
    from allmetal.bench.compare.differences import differences
    from allmetal.bench.compare.page import as_page
    from allmetal.bench.compare.runs import read_results
    from allmetal.bench.load.sweep import grid, summary, sweep

    vary = dict(args.vary)
    points = grid(vary)
    files = sweep(
        args.folder,
        points,
        settings,
        url=args.url,
        serve=args.serve,
        command=["allmetal", *hidden(sys.argv[1:])],
        tell=lambda line: print(line, file=sys.stderr, flush=True),
    )
    if files:
        print(summary(files, list(vary)))
    if args.html is not None and files:
        results = read_results(files)
        page = as_page(results, differences(results, varied=list(vary)), varied=list(vary))
        args.html.write_text(page, encoding="utf-8")
    return 0 if len(files) == len(points) else 1
