"""The `allmetal` command.

Each command is a module of this package with `add_arguments(parser)` and `execute(args) -> exit
code`.  Only the module of the command that was typed is imported, so `allmetal --help` is quick.

Exit codes: 0 done, 1 it failed, 2 the command line or the settings are wrong, 130 interrupted.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from allmetal import __version__
from allmetal.config import let_threads_sleep
from allmetal.errors import AllmetalError, ConfigError

COMMANDS = {
    "run": "generate text from one prompt",
    "chat": "talk to a model in the terminal",
    "serve": "serve a model over HTTP, with the OpenAI API",
    "batch": "answer a file of requests, in the batch format of OpenAI",
    "bench": "measure latency or throughput",
    "matrix": "what each platform can do",
    "explain": "what a model would run on here, kernel by kernel, before loading it",
    "doctor": "look for what is missing or broken on this machine",
    "plugin": "list what plugins announce",
}


class Parser(argparse.ArgumentParser):
    """argparse, with errors in the form of ours."""

    def error(self, message: str) -> NoReturn:
        print(f"error: {message}\nhint: {self.prog} --help", file=sys.stderr)
        raise SystemExit(2)


def common() -> Parser:
    """What every command takes."""
    parser = Parser(add_help=False)
    parser.add_argument(
        "--debug",
        action="store_true",
        default=argparse.SUPPRESS,
        help="show the traceback of an error",
    )
    return parser


def build_parser(command: str | None = None) -> Parser:
    """The whole command line; only the options of `command` are filled in."""
    parser = Parser(
        prog="allmetal",
        description="One LLM engine, all metal.",
        parents=[common()],
        epilog="allmetal COMMAND --help says more about a command",
    )
    parser.add_argument("--version", action="version", version=f"allmetal {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        sub = commands.add_parser(name, help=summary, description=summary, parents=[common()])
        if name == command:
            importlib.import_module(f"allmetal.cli.{name}").add_arguments(sub)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    command = next((word for word in argv if not word.startswith("-")), None)
    debug = "--debug" in argv
    let_threads_sleep()
    # Loading makes millions of objects that stay: looking for rubbish among them, again and again,
    # takes a tenth of the time.
    gc.set_threshold(50_000, 50, 50)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal may not know all characters
    try:
        args = build_parser(command).parse_args(argv)
        code: int = importlib.import_module(f"allmetal.cli.{args.command}").execute(args)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        if debug:
            raise
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader went away (`allmetal run ... | head`).  Give the interpreter's last flush
        # somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        if debug:
            raise
        return _report(error)


def _report(error: Exception) -> int:
    if isinstance(error, AllmetalError):
        hint = error.hint
        print(f"error: {error.message}", file=sys.stderr)
    else:
        hint = "this is a bug or the machine's; add --debug to see where"
        print(f"error: {type(error).__name__}: {error}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
    return 2 if isinstance(error, ConfigError) else 1
