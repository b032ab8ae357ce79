"""`allmetal bench KIND`: figures of the engine, of servers, and of one run beside another."""

from __future__ import annotations

import argparse

from allmetal.cli import common
from allmetal.cli.bench import compare, offline, serve, startup, sweep

KINDS = {
    "latency": (offline, "one request at a time: time to the first token, time per token"),
    "throughput": (offline, "many requests at once: tokens and requests per second"),
    "serve": (serve, "a server under load, ours or any other with the OpenAI API"),
    "sweep": (sweep, "the same under many loads or options, each run once and kept"),
    "startup": (startup, "from nothing to the first token: time and memory"),
    "compare": (compare, "results beside each other, as a table or a page"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    for kind, (module, summary) in KINDS.items():
        sub = kinds.add_parser(kind, help=summary, description=summary, parents=[common()])
        module.add_arguments(sub, kind)


def execute(args: argparse.Namespace) -> int:
    code: int = KINDS[args.kind][0].execute(args)
    return code
