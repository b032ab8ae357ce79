"""Compile kernels side by side instead of one after the other at their first launches.

A model has some sixty kernels, each compiled in a second or so on one core, and all are known once
its steps have been rehearsed.  Other processes compile them (`compilers`).  Triton can wait for
kernels in a pool of threads (`triton.runtime`'s asynchronous mode, made for tuning); what is
launched before it is ready waits for it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from triton.runtime import _async_compile
from triton.runtime.jit import JITFunction

from allmetal_triton.compilers import Compilers

_MOST_AT_ONCE = 64
_SWITCH_SECONDS = 5e-5


class _Background:
    """What `triton.runtime._async_compile.active_mode` holds: something that submits."""

    def __init__(self, pool: ThreadPoolExecutor, compilers: Compilers) -> None:
        self._pool = pool
        self._compilers = compilers
        self._known: dict[str, Any] = {}
        self.job: dict[str, Any] = {}  # what is asked for next

    def submit(self, key: str, compile_it: Callable[[], Any], *afterwards: Any) -> Any:
        """`afterwards`: what Triton does with the kernel; its number differs by version."""
        if key not in self._known:
            future = self._pool.submit(self._compile, compile_it, self.job)
            self._known[key] = _async_compile.FutureKernel(*afterwards, future)
        return self._known[key]

    def _compile(self, compile_it: Callable[[], Any], job: dict[str, Any]) -> Any:
        self._compilers.compile(**job)
        return compile_it()  # from the cache, or here with an error to show


def compile_ahead(rehearse: Callable[[], None]) -> None:
    """See `allmetal.platform.ahead`.  Not for two threads at once."""
    compilers = Compilers()
    pool = ThreadPoolExecutor(_MOST_AT_ONCE, "compile")
    background = _Background(pool, compilers)
    token = _async_compile.active_mode.set(background)
    # Where the processes fail, threads compile: one that calls into torch and back would wait
    # long for each return, and what it submits would come late.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(min(interval, _SWITCH_SECONDS))
    try:
        with _compiling_only(background), _Zeros():
            rehearse()
    finally:
        sys.setswitchinterval(interval)
        _async_compile.active_mode.reset(token)
        threading.Thread(target=_end, args=(pool, compilers)).start()


def _end(pool: ThreadPoolExecutor, compilers: Compilers) -> None:
    """Once what was submitted is done."""
    pool.shutdown()
    compilers.close()


class _Zeros(TorchFunctionMode):
    """What kernels would have filled holds zeros: token 0, block 0, slot 0."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.empty:
            func = torch.zeros
        elif func is torch.empty_like:
            func = torch.zeros_like
        return func(*args, **(kwargs or {}))


@contextmanager
def _compiling_only(background: _Background) -> Iterator[None]:
    """Launches compile and launch nothing; what is on its way counts as compiled."""
    run, compile_it = JITFunction.run, JITFunction._do_compile

    def warm_up(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        return run(self, *args, grid=grid, warmup=True, **kwargs)

    def compile_and_keep(self: Any, key: str, signature: Any, device: int, *rest: Any) -> Any:
        known, _, target, *_ = self.device_caches[device]
        constants, options, attributes, *_ = rest
        background.job = {
            "function": self,
            "key": self.cache_key,
            "source": self.ASTSource,
            "signature": signature,
            "constants": constants,
            "attributes": attributes,
            "options": vars(options),
            "target": target,
        }
        kernel = compile_it(self, key, signature, device, *rest)
        if kernel is not None:
            known.setdefault(key, kernel)
        return kernel

    JITFunction.run, JITFunction._do_compile = warm_up, compile_and_keep
    try:
        yield
    finally:
        JITFunction.run, JITFunction._do_compile = run, compile_it
