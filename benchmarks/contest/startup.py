"""From the start of a process to the first token it has made."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence

from contest.worker import Figure


def first_token(command: Sequence[str], mark: str, environment: Mapping[str, str]) -> Figure:
    """Seconds until `mark` is written; RuntimeError with the output if it never is."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        [str(word) for word in command],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    seen, took = [], None
    for line in process.stdout:
        seen.append(line)
        if took is None and mark in line:
            took = time.perf_counter() - begin
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = 0  # it was waited for
    if took is None:
        raise RuntimeError(f"{command!r} never wrote {mark!r}:\n{''.join(seen)[-3000:]}")
    return Figure(took, usage.ru_maxrss * 1024)
