"""`allmetal batch INPUT OUTPUT`: answer a file of requests in OpenAI's batch format."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO

from allmetal.cli.options import add_options, given
from allmetal.config import EngineConfig, ServerConfig
from allmetal.errors import AllmetalError, ConfigError

STDIO = "-"
# Of a server's options those that say how it answers; the others are about its network.
_ANSWERING = (
    "served_model_name",
    "generation_defaults",
    "tool_parser",
    "reasoning_parser",
    "max_sequences_per_request",
    "request_timeout",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", metavar="INPUT", help="a .jsonl file; -: standard input")
    parser.add_argument(
        "output",
        metavar="OUTPUT",
        help="where answers go, one a line; -: standard output. What it holds already is not "
        "asked again",
    )
    parser.add_argument(
        "--model",
        default=None,
        help="a folder, a .gguf file, or a hub name; default: what the first request names",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--overwrite", action="store_true", help="begin anew")
    how.add_argument(
        "--retry-errors", action="store_true", help="ask again what was answered with an error"
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    skipped = [f.name for f in fields(ServerConfig) if f.name not in _ANSWERING]
    add_options(parser, ServerConfig, skip=skipped)
    add_options(parser, EngineConfig, skip=("model",))


def execute(args: argparse.Namespace) -> int:
    """0 if every line has an answer, 1 if some have an error."""
    options = given(args, EngineConfig)
    config = ServerConfig(**given(args, ServerConfig))
    EngineConfig(**{**options, "model": args.model or "?"})
    from allmetal.server.batch.lines import Done, numbered, take_up
    from allmetal.server.batch.run import run_batch

    done = Done(set(), set())
    if args.output != STDIO and not args.overwrite:
        done = take_up(Path(args.output), drop_failed=args.retry_errors)
    with _reading(args.input) as source, _writing(args) as sink:
        lines = numbered(source)
        model = args.model
        if model is None:
            model, lines = _named_model(lines)
        engine_config = EngineConfig(**{**options, "model": model})
        with _Bar(_total(args.input), enabled=not args.quiet) as bar:
            job = run_batch(lines, sink, done, engine_config, config, progress=bar.show)
            try:
                counts = asyncio.run(job)
            except* AllmetalError as errors:  # those of one task each; the first says it
                raise _first(errors) from None
    print(
        f"{counts.answered} answered, {counts.failed} with an error, {counts.skipped} already done",
        file=sys.stderr,
    )
    return 1 if counts.failed else 0


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@contextmanager
def _reading(name: str) -> Iterator[BinaryIO]:
    if name == STDIO:
        yield sys.stdin.buffer
        return
    try:
        source = open(name, "rb")  # noqa: SIM115  # only opening it may fail in this way
    except OSError as error:
        raise ConfigError(f"cannot read {name}: {error.strerror}") from None
    with source:
        yield source


@contextmanager
def _writing(args: argparse.Namespace) -> Iterator[BinaryIO]:
    if args.output == STDIO:
        yield sys.stdout.buffer
        return
    try:
        sink = open(args.output, "wb" if args.overwrite else "ab")  # noqa: SIM115
    except OSError as error:
        raise ConfigError(f"cannot write {args.output}: {error.strerror}") from None
    with sink:
        yield sink


def _named_model(lines: Iterator[tuple[int, bytes]]) -> tuple[str, Iterator[tuple[int, bytes]]]:
    """The model of the first line that names one, and all lines."""
    from allmetal.server.batch.lines import Line, read_line

    looked_at = []
    for each in lines:
        looked_at.append(each)
        line = read_line(*each)
        if isinstance(line, Line) and isinstance(model := line.body.get("model"), str):
            return model, itertools.chain(looked_at, lines)
    raise ConfigError("no request names a model", hint="--model MODEL")


def _total(name: str) -> int | None:
    """Lines that are not blank, where they can be counted ahead."""
    if name == STDIO or not Path(name).is_file():
        return None
    with open(name, "rb") as source:
        return sum(1 for line in source if line.strip())


class _Bar:
    """A line on standard error: how many are done, and how fast."""

    def __init__(self, total: int | None, *, enabled: bool) -> None:
        from tqdm import tqdm

        # In a log a line now and then is enough.
        interval = 0.5 if sys.stderr.isatty() else 10.0
        self._bar = tqdm(
            total=total, desc="batch", unit="req", disable=not enabled, mininterval=interval
        )

    def show(self, counts: Any) -> None:
        self._bar.update(counts.answered + counts.failed + counts.skipped - self._bar.n)
        elapsed = self._bar.format_dict["elapsed"] if not self._bar.disable else 0
        if elapsed:
            speed = counts.tokens / elapsed
            self._bar.set_postfix_str(f"{speed:.0f} tok/s, {counts.failed} errors", refresh=False)

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
