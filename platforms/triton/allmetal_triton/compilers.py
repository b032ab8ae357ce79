"""The compile server of this process: give it a kernel, and find it in Triton's cache of files."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pickle import PicklingError
from typing import Any

from allmetal_triton.compile_server import ANSWER, HEAD, Job, pack

log = logging.getLogger(__name__)

_SERVE = "import sys; sys.path[:] = {path!r}; from allmetal_triton import compile_server; "
_MOST = 32


class Compilers:
    """Safe for threads.  What it cannot do is left for the caller to do: see `compile`."""

    def __init__(self) -> None:
        """Starts the server, which ends when it is closed or this process is gone."""
        most = min(_MOST, os.cpu_count() or 1)
        program = _SERVE.format(path=sys.path) + f"compile_server.serve({most})"
        self._server = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # what fails is tried again here, and reported here
            start_new_session=True,  # an interrupt from the keyboard is not for it
        )
        self._lock = threading.Lock()
        self._waiting: dict[int, threading.Event] = {}
        self._number = 0
        self._ended = False
        threading.Thread(target=self._listen, daemon=True).start()

    def compile(self, **job: Any) -> None:
        """The fields of `Job`.  Returns when it is done, well or not."""
        done = threading.Event()
        with self._lock:
            if self._ended:
                return
            self._number += 1
            number = self._number
            try:
                packed = pack(Job(**job))
                self._waiting[number] = done
                assert self._server.stdin is not None
                self._server.stdin.write(HEAD.pack(number, len(packed)) + packed)
                self._server.stdin.flush()
            except (PicklingError, TypeError, AttributeError, OSError) as error:
                log.debug("a kernel is compiled in this process: %s", error)
                self._waiting.pop(number, None)
                return
        done.wait()

    def close(self) -> None:
        """What was given is still done.  Does not wait."""
        assert self._server.stdin is not None
        with self._lock, suppress(OSError):
            self._ended = True
            self._server.stdin.close()

    def _listen(self) -> None:
        assert self._server.stdout is not None
        while len(answer := self._server.stdout.read(ANSWER.size)) == ANSWER.size:
            number, failed = ANSWER.unpack(answer)
            if failed:
                log.debug("kernel %d could not be compiled by the server", number)
            with self._lock:
                self._waiting.pop(number).set()
        with self._lock:
            self._ended = True
            for done in self._waiting.values():
                done.set()
            self._waiting.clear()
        self._server.wait()
