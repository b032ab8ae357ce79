"""An engine in a process of its own: it is loaded once, and measured when its turn comes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from contest.load import Engine, figure, prompt
from contest.processes import peak_memory

_MARK = "FIGURE "
FIRST_TOKEN = "FIRST TOKEN"


@dataclass(frozen=True)
class Figure:
    """`value` in the unit of the metric; `memory`: bytes at the peak, with all child processes."""

    value: float
    memory: int


def work(make: Callable[[], Engine], *, startup: bool = False) -> None:
    """The worker's side: answer each line of standard input, a metric, with a figure."""
    engine = make()
    engine.generate([prompt(16, 0)], 1 if startup else 4)  # first calls build caches, wake threads
    if startup:
        print(FIRST_TOKEN, flush=True)
        return
    print(_MARK + "0", flush=True)
    for line in sys.stdin:
        value = figure(engine, line.strip())
        print(_MARK + json.dumps([value, peak_memory(os.getpid())]), flush=True)


class Worker:
    """The other side.  RuntimeError, with what it wrote, if the process ends."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  the process writes to it
        self._process = subprocess.Popen(
            [str(word) for word in command],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._answer()

    def measure(self, metric: str) -> Figure:
        assert self._process.stdin is not None
        self._process.stdin.write(metric + "\n")
        self._process.stdin.flush()
        value, memory = json.loads(self._answer())
        return Figure(value, memory)

    def _answer(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(_MARK):
                return line.removeprefix(_MARK)
            self._log.write(line)
        self._log.seek(0)
        raise RuntimeError(f"{self._process.args!r} ended:\n{self._log.read()[-3000:]}")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def library_path() -> Mapping[str, str]:
    """Environment in which `python -m contest...` is found."""
    return {"PYTHONPATH": str(Path(__file__).parents[1])}
