"""`allmetal serve` as a process, for tests that talk to it from outside."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import httpx
import openai
import psutil

NAME = "tiny"
FLAGS = ("--served-model-name", NAME, "--kv-cache-memory", "16MiB", "--threads", "1")


class Server:
    """Started and ready.  `python` may be one of another environment; `command` is what it runs
    where that is not `allmetal serve`."""

    def __init__(
        self,
        model: Path,
        *flags: str,
        wait: bool = True,
        python: str | Path = sys.executable,
        command: Sequence[str] = (),
    ) -> None:
        serve = ["-m", "allmetal", "serve", str(model), "--port", "0", *FLAGS, *flags]
        self.process = subprocess.Popen(
            [python, *(command or serve)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.url = ""
        self.headers: dict[str, str] = {}
        self._lines: list[str] = []
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if wait:
            assert self._ready.wait(90), self.log
            assert self.url, self.log

    @property
    def log(self) -> str:
        """Standard error so far."""
        return "".join(self._lines)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.append(line)
            if match := re.search(r"(?:^serving on |\"url\":\")(https?://\S+?)/v1", line):
                self.url = match[1]
                self._ready.set()
        self._ready.set()

    def client(self, **options: object) -> openai.OpenAI:
        settings = {"base_url": f"{self.url}/v1", "api_key": "none", "max_retries": 0, **options}
        return openai.OpenAI(**settings)  # type: ignore[arg-type]

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, headers=self.headers, timeout=10)

    def post(self, path: str, body: object, **options: object) -> httpx.Response:
        options = {"headers": self.headers, **options}
        return httpx.post(self.url + path, json=body, timeout=60, **options)  # type: ignore[arg-type]

    def metric(self, name: str) -> float:
        """The sum of a metric's samples."""
        lines = self.get("/metrics").text.splitlines()
        return sum(
            float(s.rsplit(" ", 1)[1]) for s in lines if re.match(f"allmetal:{name}[{{ ]", s)
        )

    @property
    def engine(self) -> psutil.Process:
        [engine] = self._children("engine.service")
        return engine

    @property
    def workers(self) -> list[psutil.Process]:
        """Those that speak HTTP, where there are several."""
        return self._children("server.worker")

    def _children(self, module: str) -> list[psutil.Process]:
        children = psutil.Process(self.process.pid).children()
        return [each for each in children if module in "".join(each.cmdline())]

    def wait(self, seconds: float) -> int:
        """Exit code.  All of standard error has been read then."""
        code = self.process.wait(seconds)
        self._reader.join(5)
        return code

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.wait(30)
        finally:
            self.kill()


def until(condition: Callable[[], bool], seconds: float) -> None:
    begin = time.perf_counter()
    while not condition():
        assert time.perf_counter() - begin < seconds, "it did not happen in time"
        time.sleep(0.02)


def gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


Start = Callable[..., Server]
