"""Compile kernels side by side instead of one after the other at their first launches.

A model has some forty kernels, each compiled in a second or so on one core, and all are known once
its steps have been rehearsed.  Triton can compile in a pool of threads (`triton.runtime`'s
asynchronous mode, made for tuning); what is launched before it is ready waits for it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from triton.runtime import _async_compile
from triton.runtime.jit import JITFunction

_MOST_WORKERS = 32
_SWITCH_SECONDS = 5e-5


class _Background:
    """What `triton.runtime._async_compile.active_mode` holds: something that submits."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._known: dict[str, Any] = {}

    def submit(self, key: str, compile_it: Callable[[], Any], *afterwards: Any) -> Any:
        """`afterwards`: what Triton does with the kernel; its number differs by version."""
        if key not in self._known:
            future = self._pool.submit(compile_it)
            self._known[key] = _async_compile.FutureKernel(*afterwards, future)
        return self._known[key]


def compile_ahead(rehearse: Callable[[], None]) -> None:
    """See `allmetal.platform.ahead`.  Not for two threads at once."""
    pool = ThreadPoolExecutor(min(_MOST_WORKERS, os.cpu_count() or 1), "compile")
    token = _async_compile.active_mode.set(_Background(pool))
    # Compilers walk Python too: a thread that calls into torch and back would wait long for each
    # return, and what it submits would come late.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(min(interval, _SWITCH_SECONDS))
    try:
        with _compiling_only(), _Zeros():
            rehearse()
    finally:
        sys.setswitchinterval(interval)
        _async_compile.active_mode.reset(token)
        pool.shutdown(wait=False)  # what was submitted is still done


class _Zeros(TorchFunctionMode):
    """What kernels would have filled holds zeros: token 0, block 0, slot 0."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.empty:
            func = torch.zeros
        elif func is torch.empty_like:
            func = torch.zeros_like
        return func(*args, **(kwargs or {}))


@contextmanager
def _compiling_only() -> Iterator[None]:
    """Launches compile and launch nothing; what is on its way counts as compiled."""
    run, compile_it = JITFunction.run, JITFunction._do_compile

    def warm_up(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        return run(self, *args, grid=grid, warmup=True, **kwargs)

    def compile_and_keep(self: Any, key: str, signature: Any, device: int, *rest: Any) -> Any:
        kernel = compile_it(self, key, signature, device, *rest)
        if kernel is not None:
            self.device_caches[device][0].setdefault(key, kernel)
        return kernel

    JITFunction.run, JITFunction._do_compile = warm_up, compile_and_keep
    try:
        yield
    finally:
        JITFunction.run, JITFunction._do_compile = run, compile_it
