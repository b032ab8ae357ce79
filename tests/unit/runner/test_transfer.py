"""Copies between host and device: what is in flight is not overwritten."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from allmetal.runner.transfer import RING, Downloader, Uploader


class Log:
    """An asynchronous device that notes what happens to its events and pinned buffers."""

    asynchronous = True
    torch_device = "meta"

    def __init__(self, *, events: bool = True) -> None:
        self.log: list[tuple[str, int]] = []
        self.pinned = 0
        self.num_events = 0
        self.streams = SimpleNamespace(event=self._event) if events else None

    def _event(self) -> Any:
        name = self.num_events
        self.num_events += 1
        return SimpleNamespace(
            record=lambda: self.log.append(("record", name)),
            synchronize=lambda: self.log.append(("wait", name)),
            query=lambda: False,
        )

    def synchronize(self) -> None:
        self.log.append(("wait for all", 0))

    def pin(self, x: torch.Tensor) -> torch.Tensor:
        self.pinned += 1
        return x


def test_a_staging_buffer_is_reused_only_after_its_copy() -> None:
    device: Any = Log()
    uploader = Uploader(device)
    for number in range(2 * RING):
        uploader.send(array("q", [number]))
    first = [("record", name) for name in range(RING)]
    again = [step for name in range(RING) for step in (("wait", name), ("record", name))]
    assert first + again == device.log
    assert device.pinned == RING


def test_a_longer_pack_gets_a_longer_buffer_after_the_old_ones_copy() -> None:
    device: Any = Log()
    uploader = Uploader(device)
    for _ in range(RING):
        uploader.send(array("q", [1]))
    assert uploader.send(array("q", range(10_000))).shape == (10_000,)
    assert ("wait", 0) in device.log
    assert device.pinned == RING + 1


def test_without_events_reuse_waits_for_the_device() -> None:
    device: Any = Log(events=False)
    uploader = Uploader(device)
    for _ in range(RING + 1):
        uploader.send(array("q", [1]))
    assert device.log == [("wait for all", 0)]


@pytest.mark.parametrize("words", [[], [5], list(range(5000))])
def test_a_host_gets_the_words_themselves(words: list[int]) -> None:
    host: Any = SimpleNamespace(asynchronous=False, torch_device="cpu")
    assert Uploader(host).send(array("q", words)).tolist() == words


def test_downloads_in_flight_have_buffers_of_their_own() -> None:
    device: Any = Log()
    downloader = Downloader(device)
    first = downloader.fetch(torch.arange(3))
    second = downloader.fetch(torch.arange(3, 8))
    assert not first.done()
    assert first.words() == [0, 1, 2]
    third = downloader.fetch(torch.arange(8, 10))
    assert second.words() == [3, 4, 5, 6, 7]
    assert third.words() == [8, 9]
    assert device.pinned == 2
    assert [step for step in device.log if step[0] == "wait"] == [
        ("wait", 0),
        ("wait", 1),
        ("wait", 2),
    ]
