"""What the GPU platforms share of driving a device."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from allmetal_triton.device.gpu import TorchModule
from allmetal_triton.device.graphs import Graphs


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
