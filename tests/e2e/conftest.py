"""A real server in a process of its own, on a tiny random model, and the real `openai` client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from servers import Server, Start


@pytest.fixture(scope="session")
def server(tiny_llama: Path) -> Iterator[Server]:
    """One server for all tests that leave it as it was."""
    with Server(tiny_llama) as running:
        yield running


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return server.client()


@pytest.fixture
def start(tiny_llama: Path) -> Iterator[Start]:
    """Start servers of one's own, to hurt them."""
    made: list[Server] = []

    def make(*flags: str) -> Server:
        made.append(Server(tiny_llama, *flags))
        return made[-1]

    yield make
    for each in made:
        each.kill()
