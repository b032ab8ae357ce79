"""Log lines: as text or as JSON, written by a thread, so that nothing waits for a slow disk.

A disk that is full, or a reader who went away, costs lines and nothing else.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from logging.handlers import QueueHandler
from typing import Any, TypeAlias

import msgspec

from allmetal.config import LogFormat

# Beyond this many lines that nobody takes, lines are dropped, and counted.
_MOST_WAITING = 10_000
_LAST_LINES_S = 2.0
_STDERR = 2

Lines: TypeAlias = "queue.Queue[logging.LogRecord | None]"


class _Queue(QueueHandler):
    def __init__(self, lines: Lines, name_of: Callable[[], str]) -> None:
        super().__init__(lines)
        self._dropped = 0
        self._name_of = name_of

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        record.request_id = self._name_of()
        return record  # it stays in this process, so nothing of it need be made plain

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self._dropped += 1
            return
        if self._dropped:
            number, self._dropped = self._dropped, 0
            logging.getLogger(__name__).warning("%d log lines were dropped", number)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        name = getattr(record, "request_id", "")
        fields = " ".join(f"{key}={value}" for key, value in _fields(record).items())
        parts = (_time(record), record.levelname, name and f"[{name}]", record.getMessage(), fields)
        line = " ".join(filter(None, parts))
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        return f"{line}\n{trace}" if trace else line


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if name := getattr(record, "request_id", ""):
            line["request_id"] = name
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode({**line, **_fields(record)}, enc_hook=str).decode()


def configure(style: LogFormat, *, name_of_request: Callable[[], str] = str) -> Callable[[], None]:
    """Send this process's log lines to standard error; returns what writes out the last of them."""
    formatter = _Json() if style == "json" else _Text()
    lines: Lines = queue.Queue(_MOST_WAITING)
    thread = threading.Thread(target=_write, args=(lines, formatter), name="logs", daemon=True)
    thread.start()
    root = logging.getLogger()
    root.handlers = [_Queue(lines, name_of_request)]
    root.setLevel(logging.WARNING)
    logging.getLogger("allmetal").setLevel(logging.INFO)

    def stop() -> None:
        with contextlib.suppress(queue.Full):
            lines.put_nowait(None)
            thread.join(_LAST_LINES_S)

    return stop


def _write(lines: Lines, formatter: logging.Formatter) -> None:
    # Not through `sys.stderr`, whose lock a write that hangs would hold to the end.
    while (record := lines.get()) is not None:
        with contextlib.suppress(Exception):  # the line is lost; others may not be
            line = formatter.format(record).encode(errors="replace") + b"\n"
            while line:
                line = line[os.write(_STDERR, line) :]


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    found: dict[str, Any] = getattr(record, "fields", {})
    return found


def _time(record: logging.LogRecord) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{whole}.{int(record.msecs):03d}Z"
