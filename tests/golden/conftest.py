"""Checkpoints are made once a session, each when a test first asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import golden
import pytest
import torch
from golden import Golden


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def make_golden(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Golden]:
    @cache
    def make(name: str) -> Golden:
        folder = tmp_path_factory.mktemp(name)
        return Golden(name, folder, golden.make(golden.CASES[name](), folder))

    return make


@pytest.fixture(params=sorted(golden.CASES))
def model(request: pytest.FixtureRequest, make_golden: Callable[[str], Golden]) -> Golden:
    return make_golden(request.param)
