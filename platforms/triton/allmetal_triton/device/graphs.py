"""Launches recorded once and replayed, in one pool of memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet

from allmetal.errors import GraphError
from allmetal.platform.contract import Graph

if TYPE_CHECKING:
    from allmetal_triton.device.gpu import TorchModule


class Graphs:
    """`module.graph` is there."""

    computes = False

    def __init__(self, module: TorchModule, torch_device: str) -> None:
        self._module, self._api, self._device = module, module.api, torch_device
        self._pool: Any = None
        self._stream: Any = None
        self._made: WeakSet[Any] = WeakSet()

    def capture(self, run: Callable[[], object]) -> Graph:
        """Raises GraphError where `run` does what cannot be recorded."""
        assert self._module.graph is not None
        if self._stream is None:
            self._stream = self._api.Stream(self._device)
        if not self._made:
            # The allocator lets a pool go with its last graph, also one that failed, and takes
            # its name for an error from then on.
            self._pool = self._api.graph_pool_handle()
        graph = self._module.graph()
        # Not torch's own context manager: it empties the allocator's caches every time, and leaves
        # its stream in use when an error ends the recording.
        self._api.synchronize(self._device)
        with self._api.stream(self._stream):
            graph.capture_begin(pool=self._pool, **(self._module.capture or {}))
            try:
                run()
            except BaseException as error:
                with suppress(RuntimeError):  # it says what is known: the recording is invalid
                    graph.capture_end()
                if isinstance(error, RuntimeError):
                    raise GraphError(f"the step cannot be recorded: {error}") from error
                raise
            graph.capture_end()
        self._made.add(graph)
        return cast("Graph", graph)
