"""A process that compiles kernels for another, each in a fork of its own.

Compilers walk a kernel's Python, so threads of one process compile hardly more than one at a time.
What comes of a kernel goes into Triton's cache of files, where whoever asked finds it.  The process
imports Triton and the kernels, and neither torch nor a driver.

On standard input: a job's number and length, 4 bytes each, then a pickled `Job`.  On standard
output: 4 bytes of the number of each job that is done, and 1 byte, 0 where the kernel is in the
cache.
"""

from __future__ import annotations

import functools
import gc
import importlib
import io
import os
import pickle
import selectors
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

HEAD = struct.Struct("<II")
ANSWER = struct.Struct("<IB")
_JOBS, _ANSWERS = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """`function`, its `key` and `source`, the class of its source, are Triton's.  The rest is what
    it was specialised for, as its compiler takes it."""

    function: Any
    key: str
    source: Any
    signature: Mapping[str, str]
    constants: Mapping[Any, Any]
    attributes: Mapping[Any, Any]
    options: Mapping[str, Any]
    target: Any

    def run(self) -> None:
        import triton

        # Triton's own would depend on which functions were looked at before this one: those that
        # a called function reads are counted only if its key is there already.
        self.function.hash = self.key
        source = self.source(self.function, self.signature, self.constants, self.attributes)
        triton.compile(source, target=self.target, options=dict(self.options))


class _Pickler(pickle.Pickler):
    """Functions of Triton's by their names."""

    def persistent_id(self, obj: Any) -> tuple[str, str] | None:
        from triton.runtime.jit import JITFunction

        return (obj.fn.__module__, obj.fn.__qualname__) if isinstance(obj, JITFunction) else None


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, pid: tuple[str, str]) -> Any:
        module, name = pid
        return getattr(importlib.import_module(module), name)


def pack(job: Job) -> bytes:
    """Raises what pickle raises for what has no name in another process."""
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(job)
    return buffer.getvalue()


def unpack(packed: bytes) -> Job:
    job = _Unpickler(io.BytesIO(packed)).load()
    assert isinstance(job, Job)
    return job


def serve(most: int) -> None:
    """Until standard input ends and all is done; at most so many jobs at once."""
    running: dict[int, tuple[int, int]] = {}  # process and job by the file that ends with it
    is_open = True
    while is_open or running:
        with selectors.DefaultSelector() as selector:
            if is_open and len(running) < most:
                selector.register(_JOBS, selectors.EVENT_READ)
            for alive in running:
                selector.register(alive, selectors.EVENT_READ)
            ready = [key.fd for key, _ in selector.select()]
        for file in ready:
            if file != _JOBS:
                os.write(_ANSWERS, _ended(file, *running.pop(file)))
            elif (given := _next()) is None:
                is_open = False
            else:
                number, packed = given
                alive, process = _start(packed)
                running[alive] = (process, number)


def _next() -> tuple[int, bytes] | None:
    head = _read(HEAD.size)
    if head is None:
        return None
    number, length = HEAD.unpack(head)
    packed = _read(length)
    return None if packed is None else (number, packed)


def _read(count: int) -> bytes | None:
    """None where the jobs end before.  Not through a buffer: what lies in it wakes no selector."""
    parts = bytearray()
    while len(parts) < count:
        part = os.read(_JOBS, count - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)


def _start(packed: bytes) -> tuple[int, int]:
    """A file that ends with the process, whatever ends it, and the process."""
    try:
        job = unpack(packed)  # imports the kernel's module, for all that come after too
        _warm(job.target)
    except Exception:  # whatever a module does
        job = None  # so that it fails
    alive, held = os.pipe()
    process = os.fork()
    if process == 0:
        status = 1
        try:
            os.close(alive)
            if job is not None:
                job.run()
                status = 0
        finally:
            os._exit(status)
    os.close(held)
    return alive, process


def _ended(alive: int, process: int, number: int) -> bytes:
    """The answer to its job."""
    os.close(alive)
    _, status = os.waitpid(process, 0)
    return ANSWER.pack(number, status != 0)


@functools.cache
def _warm(target: Any) -> None:
    """Work out once what every fork would: the versions of Triton and of its compilers."""
    from triton.compiler.compiler import make_backend
    from triton.runtime.cache import triton_key

    make_backend(target).hash()
    triton_key()
    gc.freeze()  # forks leave the pages of what is there alone
