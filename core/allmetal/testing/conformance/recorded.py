"""A platform whose device counts what it replays; all else is the platform's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from allmetal.platform.contract import (
    DEFAULT_OPTIONS,
    Device,
    DeviceInfo,
    Graph,
    GraphCapture,
    OpenOptions,
    Platform,
)


class Counting:
    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self.num_replays = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._platform, name)

    @property
    def as_platform(self) -> Platform:
        """Itself: what it lacks of a platform, `__getattr__` has, which no type checker sees."""
        return cast(Platform, self)

    def open(self, device: DeviceInfo, options: OpenOptions = DEFAULT_OPTIONS) -> Device:
        return cast(Device, _Device(self._platform.open(device, options), self))


class _Device:
    def __init__(self, device: Device, counting: Counting) -> None:
        self._device = device
        graphs = device.graphs
        self.graphs = None if graphs is None else _Capture(graphs, counting)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)


class _Capture:
    def __init__(self, graphs: GraphCapture, counting: Counting) -> None:
        self._graphs, self._counting = graphs, counting
        self.computes = graphs.computes

    def capture(self, run: Callable[[], object]) -> Graph:
        return _Graph(self._graphs.capture(run), self._counting)


class _Graph:
    def __init__(self, graph: Graph, counting: Counting) -> None:
        self._graph, self._counting = graph, counting

    def replay(self) -> None:
        self._counting.num_replays += 1
        self._graph.replay()
