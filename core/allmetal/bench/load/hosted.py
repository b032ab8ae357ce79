"""A server of ours, in a process of its own, for as long as it is measured."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from allmetal.bench.load.client import ServerError

_SERVING = re.compile(r"serving on (https?://\S+?)/v1")
_STOP_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosted:
    """`seconds`: from the start of the process until it listens."""

    url: str
    seconds: float
    process: subprocess.Popen[str]


@contextmanager
def hosted(options: Sequence[str], log: Path | None = None) -> Iterator[Hosted]:
    """`allmetal serve` with these words, on a free port.  Raises ServerError if it ends instead.

    What it says on standard error is kept in `log`.
    """
    words = [sys.executable, "-m", "allmetal", "serve", *options, "--port", "0"]
    begin = time.perf_counter()
    nothing = subprocess.DEVNULL
    process = subprocess.Popen(
        words,
        stdin=nothing,
        stdout=nothing,
        stderr=subprocess.PIPE,
        text=True,
    )
    said: list[str] = []
    try:
        url = _wait(process, said)
        seconds = time.perf_counter() - begin
        reader = threading.Thread(target=_drain, args=(process, said), daemon=True)
        reader.start()
        yield Hosted(url=url, seconds=seconds, process=process)
    finally:
        _stop(process)
        if log is not None:
            log.write_text("".join(said), encoding="utf-8")


def _wait(process: subprocess.Popen[str], said: list[str]) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        said.append(line)
        if found := _SERVING.match(line):
            return found[1]
    last = "".join(said[-6:]).strip()
    raise ServerError(f"the server ended before it listened, code {process.wait()}: {last}")


def _drain(process: subprocess.Popen[str], said: list[str]) -> None:
    """Nobody else reads, and a full pipe would hold the server up."""
    assert process.stderr is not None
    said.extend(process.stderr)


def _stop(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
