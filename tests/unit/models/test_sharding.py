"""A model shared among ranks computes what one rank computes, and each reads its part only."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from made_up import GEMMA3, GLM4, LLAMA, OLMO2, PHI3, QWEN2, Scaled, context, made_up

from allmetal.errors import ConfigError
from allmetal_models.testing import Driver

CPU = torch.device("cpu")
IDS = [5, 17, 80, 3, 44, 61, 95, 0, 12, 33, 7]


class Meeting:
    """Where threads that play ranks put their tensors and see everyone's."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._slots: list[torch.Tensor | None] = [None] * size
        self._barrier = threading.Barrier(size, timeout=20)

    def exchange(self, rank: int, x: torch.Tensor) -> list[torch.Tensor]:
        self._slots[rank] = x
        self._barrier.wait()
        everyone = [slot for slot in self._slots if slot is not None]
        self._barrier.wait()
        return everyone


class ThreadCommunicator:
    def __init__(self, meeting: Meeting, rank: int) -> None:
        self._meeting, self.rank, self.size = meeting, rank, meeting.size

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._meeting.exchange(self.rank, x)).sum(0)

    def all_gather(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        return torch.cat(self._meeting.exchange(self.rank, x), dim)

    def broadcast(self, x: torch.Tensor, root: int) -> torch.Tensor:
        return self._meeting.exchange(self.rank, x)[root]

    def close(self) -> None: ...


def logits_of_ranks(hf: Mapping[str, Any], size: int) -> list[torch.Tensor]:
    meeting = Meeting(size)

    def run(rank: int) -> torch.Tensor:
        communicator = ThreadCommunicator(meeting, rank) if size > 1 else None
        ctx = context(tp_rank=rank, tp_size=size, communicator=communicator)
        (logits,) = Driver(made_up(hf, ctx), block_size=4, device=CPU).feed(IDS)
        return logits

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))


TIED = {**LLAMA, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize(
    "hf", [LLAMA, TIED, QWEN2, PHI3, GEMMA3, GLM4], ids=lambda hf: hf["model_type"]
)
def test_ranks_together_compute_what_one_computes(hf: Mapping[str, Any], size: int) -> None:
    """At 8 ranks, two share a key-value head."""
    (expected,) = logits_of_ranks(hf, 1)
    assert expected.std() > 0.1
    for logits in logits_of_ranks(hf, size):
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_a_rank_reads_its_share_of_every_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0
    original = Scaled.read

    def counting(self: Scaled, *part: Any) -> torch.Tensor:
        nonlocal read
        found = original(self, *part)
        read += found.numel() if found.dim() == 2 else 0
        return found

    monkeypatch.setattr(Scaled, "read", counting)
    logits_of_ranks(PHI3, 1)
    whole, read = read, 0
    logits_of_ranks(PHI3, 4)  # each rank reads a quarter
    assert read == whole


def test_caches_hold_a_ranks_heads_only() -> None:
    meeting = Meeting(4)
    ctx = context(tp_rank=1, tp_size=4, communicator=ThreadCommunicator(meeting, 1))
    model = made_up(LLAMA, ctx)
    assert [spec.num_kv_heads for spec in model.kv_specs] == [1, 1]


def test_ranks_without_a_communicator_are_refused() -> None:
    with pytest.raises(ConfigError, match="needs a communicator"):
        context(tp_size=2)


@pytest.mark.parametrize(
    ("hf", "size", "reason"),
    [
        (LLAMA, 3, "96 tokens|8 query heads"),
        ({**LLAMA, "vocab_size": 97}, 2, "97 tokens of the vocabulary do not divide among 2"),
        ({**LLAMA, "num_attention_heads": 6, "num_key_value_heads": 3}, 2, "3 key-value heads"),
        (OLMO2, 2, "norm over all heads"),
    ],
)
def test_what_does_not_divide_is_refused(hf: Mapping[str, Any], size: int, reason: str) -> None:
    ctx = context(tp_size=size, communicator=ThreadCommunicator(Meeting(size), 0))
    with pytest.raises(ConfigError, match=reason):
        made_up(hf, ctx)
