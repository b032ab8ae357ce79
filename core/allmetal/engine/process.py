"""The engine's process, seen from the one that started it.

It is started anew, not forked, so it inherits no threads, locks or device contexts.  It holds the
reading end of a pipe whose writing end only the parent has: when the parent is gone, however it
went, the pipe closes and the engine exits.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable

ENGINE = "allmetal.engine.engine:Engine.from_config"

_BOOT = "import sys; sys.path[:] = {path!r}; from allmetal.engine.service import main; main({args})"


class EngineProcess:
    """A running engine process; `on_exit` is called in a thread of its own when it ends."""

    def __init__(self, address: str, *, factory: str, on_exit: Callable[[], None]) -> None:
        boot = _BOOT.format(path=sys.path, args=f"{address!r}, {factory!r}")
        self._process = subprocess.Popen(
            [sys.executable, "-c", boot], stdin=subprocess.PIPE, close_fds=True
        )
        self._exited = threading.Event()
        self._on_exit = on_exit
        threading.Thread(target=self._watch, name="engine-watch", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return not self._exited.is_set()

    def exit_reason(self) -> str:
        """How it ended, in words."""
        code = self._process.returncode
        if code is None:
            return "it is running"
        if code >= 0:
            return f"it exited with code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        if name == "SIGKILL":
            return "it was killed by SIGKILL, as the system does when memory runs out"
        return f"it was killed by {name}"

    def stop(self, *, grace_s: float) -> None:
        """Wait `grace_s` for it to end by itself, then end it.  Returns when it is gone."""
        if not self._exited.wait(grace_s):
            self._process.kill()
            self._exited.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _watch(self) -> None:
        self._process.wait()
        self._exited.set()
        self._on_exit()
