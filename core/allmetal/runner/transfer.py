"""Few, small copies between host and device that never make the host wait for the device.

On a device that works on after a call returns, copies go through pinned buffers, each guarded by
an event; on one that does not, the host's memory is the device's, or a copy is simply made.
"""

from __future__ import annotations

import ctypes
from array import array
from dataclasses import dataclass

import torch

from allmetal.platform.contract import Device, Event

RING = 8
"""Staged uploads in flight: a few of each step, and two steps are launched ahead."""


@dataclass(slots=True)
class _Staged:
    buffer: torch.Tensor
    sent: Event | None = None


class Uploader:
    """Sends packs of int64 words: one copy a pack."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._target = torch.device(device.torch_device)
        self._shared = self._target.type == "cpu"
        self._ring: list[_Staged] = []
        self._next = 0

    def send(self, words: array[int], into: torch.Tensor | None = None) -> torch.Tensor:
        """[len(words)] int64 on the device; `words` must not be touched afterwards.

        They go to the beginning of `into` if it is given, behind what was launched before.
        """
        if not words:
            return torch.empty(0, dtype=torch.int64, device=self._target)
        pack = torch.frombuffer(words, dtype=torch.int64)
        if into is not None:
            into = into[: len(words)]
        if not self._device.asynchronous:
            return pack.to(self._target) if into is None else into.copy_(pack)
        if self._shared and into is None:
            return pack
        staged = self._stage(len(words))
        source = staged.buffer[: len(words)].copy_(pack)
        if into is None:
            sent = source.to(self._target, non_blocking=True)
        else:
            sent = into.copy_(source, non_blocking=True)
        if staged.sent is not None:
            staged.sent.record()
        return sent

    def overwrite(self, place: torch.Tensor, words: array[int]) -> None:
        """As `send`, into the beginning of `place`, which is contiguous.

        A host does it without torch: that would give up the interpreter's lock, and the thread
        that schedules would work before the step is computed and not meanwhile.
        """
        if self._device.asynchronous or not self._shared:
            self.send(words, into=place)
            return
        size = len(words) * words.itemsize
        assert size <= place.numel() * place.element_size()
        memory = (ctypes.c_char * size).from_address(place.data_ptr())
        memoryview(memory).cast("B")[:] = memoryview(words).cast("B")

    def _stage(self, length: int) -> _Staged:
        """The ring's next buffer, free and long enough."""
        position = self._next
        self._next = (position + 1) % RING
        if position == len(self._ring):
            self._ring.append(self._new_stage(length))
            return self._ring[position]
        staged = self._ring[position]
        if staged.sent is None:
            self._device.synchronize()
        else:
            staged.sent.synchronize()
        if staged.buffer.shape[0] < length:
            staged = self._ring[position] = self._new_stage(length)
        return staged

    def _new_stage(self, length: int) -> _Staged:
        capacity = max(4096, 1 << (length - 1).bit_length())
        buffer = self._device.pin(torch.empty(capacity, dtype=torch.int64))
        streams = self._device.streams
        return _Staged(buffer, streams.event() if streams is not None else None)


@dataclass(slots=True)
class Download:
    """Words on their way to the host.  `words` may be called once."""

    _device: Device
    _buffer: torch.Tensor
    _length: int
    _arrived: Event | None
    _pool: list[torch.Tensor]

    def done(self) -> bool:
        return self._arrived is None or self._arrived.query()

    def words(self) -> list[int]:
        if self._arrived is None:
            self._device.synchronize()
        else:
            self._arrived.synchronize()
        words: list[int] = self._buffer[: self._length].tolist()
        self._pool.append(self._buffer)
        return words


class Downloader:
    """Fetches packs of int64 words from an asynchronous device."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._pool: list[torch.Tensor] = []

    def fetch(self, words: torch.Tensor) -> Download:
        """`words` [n] int64; the copy starts when the device has computed them."""
        length = words.shape[0]
        buffer = self._pool.pop() if self._pool else None
        if buffer is None or buffer.shape[0] < length:
            capacity = max(1024, 1 << max(length - 1, 0).bit_length())
            buffer = self._device.pin(torch.empty(capacity, dtype=torch.int64))
        buffer[:length].copy_(words, non_blocking=True)
        streams = self._device.streams
        arrived = None
        if streams is not None:
            arrived = streams.event()
            arrived.record()
        return Download(self._device, buffer, length, arrived, self._pool)
