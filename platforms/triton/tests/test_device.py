"""What the GPU platforms share of driving a device."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from allmetal.errors import GraphError
from allmetal.platform.contract import Advice, DeviceInfo
from allmetal_rocm.device import HIP
from allmetal_triton.device.gpu import TorchGPU, TorchModule
from allmetal_triton.device.graphs import Graphs
from allmetal_xpu.device import XPU

INFO = DeviceInfo(index=0, name="thing", total_memory=0)
MODULES = [
    pytest.param(HIP, torch.cuda.CUDAGraph, id="rocm"),
    pytest.param(XPU, getattr(torch.xpu, "XPUGraph", None), id="xpu"),
]


class Allocator:
    """What torch's allocator does about the pools of graphs: a count for each, and no way back."""

    def __init__(self) -> None:
        self.users: dict[int, int] = {}
        self.named = 0

    def graph_pool_handle(self) -> int:
        self.named += 1
        return self.named

    def graph(self) -> Any:
        users = self.users

        class Graph:
            def capture_begin(self, pool: int) -> None:
                assert users.get(pool) != 0, "the pool was let go"
                users[pool] = users.get(pool, 0) + 1
                self.pool = pool

            def capture_end(self) -> None: ...
            def __del__(self) -> None:
                users[self.pool] -= 1

        return Graph()


def test_a_pool_whose_last_graph_is_gone_is_not_named_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allocator = Allocator()
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", allocator.graph_pool_handle)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    graphs = Graphs(TorchModule(type="cuda", graph=allocator.graph), "cuda:0")

    def fails() -> None:
        raise ValueError("cannot be recorded")

    with pytest.raises(ValueError, match="cannot be recorded"):
        graphs.capture(fails)
    gc.collect()
    first = graphs.capture(lambda: None)
    second = graphs.capture(lambda: None)
    assert allocator.users == {1: 0, 2: 2}
    del first, second
    gc.collect()
    assert graphs.capture(lambda: None)
    assert allocator.users[2] == 0


class Recorder:
    """torch's graphs, streams and pools, which note what is asked of them in torch's own words."""

    def __init__(self, module: TorchModule, graph: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        if graph is None:
            pytest.skip("needs a torch that records launches of this kind of device")
        said: list[str] = []
        real = inspect.signature(graph.capture_begin)

        class Graph:
            def capture_begin(self, **how: Any) -> None:
                real.bind(self, **how)
                said.append(" ".join(["begin", *(f"{k}={v}" for k, v in how.items())]))

            def capture_end(self) -> None:
                said.append("end")

        @contextmanager
        def stream(which: str) -> Iterator[None]:
            said.append(f"to {which}")
            yield
            said.append(f"from {which}")

        monkeypatch.setattr(module.api, "graph_pool_handle", lambda: "pool")
        monkeypatch.setattr(module.api, "Stream", lambda device: f"a stream of {device}")
        monkeypatch.setattr(module.api, "stream", stream)
        monkeypatch.setattr(module.api, "synchronize", lambda device: said.append(f"wait {device}"))
        self.said = said
        self.graphs = Graphs(replace(module, graph=Graph), f"{module.type}:0")


@pytest.mark.parametrize(("module", "graph"), MODULES)
def test_launches_are_recorded_on_a_stream_of_their_own_into_one_pool(
    module: TorchModule, graph: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(module, graph, monkeypatch)
    said, device = recorder.said, f"{module.type}:0"

    kept = [recorder.graphs.capture(lambda: said.append("launches")) for _ in range(2)]

    how = " capture_error_mode=thread_local" if module is HIP else ""
    once = [f"wait {device}", f"to a stream of {device}", f"begin pool=pool{how}"]
    once += ["launches", "end", f"from a stream of {device}"]
    assert said == [*once, *once]
    assert len(kept) == 2


@pytest.mark.parametrize(("module", "graph"), MODULES)
def test_what_cannot_be_recorded_ends_the_recording_with_a_reason(
    module: TorchModule, graph: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(module, graph, monkeypatch)

    def reads() -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(GraphError, match="cannot be recorded: operation not permitted"):
        recorder.graphs.capture(reads)
    assert recorder.said[-1] == "end"


@pytest.mark.parametrize(("module", "graph"), MODULES)
def test_what_the_allocator_keeps_is_free_and_given_back_at_the_end(
    module: TorchModule, graph: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, emptied = module.api, []
    monkeypatch.setattr(api, "mem_get_info", lambda _: (10, 100))
    monkeypatch.setattr(api, "memory_reserved", lambda _: 30)
    monkeypatch.setattr(api, "memory_allocated", lambda _: 5)
    monkeypatch.setattr(api, "is_initialized", lambda: True)
    monkeypatch.setattr(api, "empty_cache", lambda: emptied.append(True))
    monkeypatch.setattr(api, "set_device", lambda ordinal: emptied.append(ordinal))

    gpu = TorchGPU(INFO, module, 3, advise=lambda *_: Advice(), versions={"driver": "7"})
    assert (gpu.memory().free, gpu.memory().total) == (35, 100)
    assert gpu.versions()["driver"] == "7"
    gpu.close()

    assert emptied == [3, True], "launches of this thread go to that device"


@pytest.mark.parametrize(("kind", "backend"), [("cuda", "nccl"), ("xpu", "xccl")])
def test_collectives_go_by_torchs_own_names(kind: str, backend: str) -> None:
    """RCCL is torch's nccl in a build for ROCm."""
    assert dist.Backend.default_device_backend_map[kind] == backend
