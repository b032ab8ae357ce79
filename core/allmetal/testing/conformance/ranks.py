"""Work that ranks of a group do, each in a process of its own on a device of its own.

A job gives what it found wrong, in words; the parent waits for all ranks and collects that.
"""

from __future__ import annotations

import multiprocessing
import pickle
import queue
import socket
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from allmetal.checkpoint.folder import FolderCheckpoint
from allmetal.platform.contract import Communicator, Device, DeviceInfo, OpenOptions, Platform
from allmetal.platform.reference import kernels as reference_kernels
from allmetal.platform.select import Kernels, with_reference
from allmetal.platform.specs import DenseWeight
from allmetal.runner.weights import weight_readers
from allmetal.testing.conformance.base import TOLERANCE, torch_dtype
from allmetal_models.context import BuildContext
from allmetal_models.registry import build_model
from allmetal_models.testing import Driver

PATIENCE = 120.0
"""Seconds that all ranks together may take."""
DTYPES = ("float32", "bfloat16")
SHAPES = ((1,), (7,), (3, 5), (2, 1000), (64, 33))


@dataclass(frozen=True, slots=True)
class Rank:
    """One process's place, and how all ranks' inputs are made, so that each knows the others'."""

    device: Device
    communicator: Communicator
    rank: int
    size: int

    def inputs(self, shape: tuple[int, ...], dtype: str) -> list[torch.Tensor]:
        """Of every rank, on the host."""
        generator = torch.Generator().manual_seed(len(shape) * 1000 + shape[-1])
        return [
            torch.randn(shape, generator=generator).to(torch_dtype(dtype)) for _ in range(self.size)
        ]

    def put(self, x: torch.Tensor) -> torch.Tensor:
        return x.clone().to(self.device.torch_device)

    def get(self, x: torch.Tensor) -> torch.Tensor:
        self.device.synchronize()
        return x.cpu()


Job = Callable[..., Iterator[str]]


def all_reduce(rank: Rank) -> Iterator[str]:
    for dtype, shape in product(DTYPES, SHAPES):
        every = rank.inputs(shape, dtype)
        exact = torch.stack([x.double() for x in every]).sum(0)
        got = rank.get(rank.communicator.all_reduce(rank.put(every[rank.rank])))
        error = float((got.double() - exact).norm() / exact.norm())
        if got.shape != exact.shape or got.dtype != every[0].dtype or not error <= TOLERANCE[dtype]:
            yield f"all_reduce of {dtype} {list(shape)} is off by {error:.2e}"


def same_bits(rank: Rank) -> Iterator[str]:
    """Ranks that differ in a bit choose different tokens one day."""
    for dtype, shape in product(DTYPES, SHAPES):
        mine = rank.communicator.all_reduce(rank.put(rank.inputs(shape, dtype)[rank.rank]))
        first = rank.communicator.broadcast(mine.clone(), 0)
        if not torch.equal(rank.get(mine), rank.get(first)):
            yield f"all_reduce of {dtype} {list(shape)} gives ranks other bits"


def all_gather(rank: Rank) -> Iterator[str]:
    for dtype, shape in product(DTYPES, SHAPES):
        every = rank.inputs(shape, dtype)
        for dim in range(len(shape)):
            got = rank.get(rank.communicator.all_gather(rank.put(every[rank.rank]), dim))
            if not torch.equal(got, torch.cat(every, dim)):
                yield f"all_gather of {dtype} {list(shape)} along {dim} is wrong"


def broadcast(rank: Rank) -> Iterator[str]:
    for dtype, root in product(DTYPES, range(rank.size)):
        every = rank.inputs((5, 9), dtype)
        got = rank.get(rank.communicator.broadcast(rank.put(every[rank.rank]), root))
        if not torch.equal(got, every[root]):
            yield f"broadcast from rank {root} of {dtype} is wrong"


def greedy(
    rank: Rank, dtype: str, platform: Platform, folder: str, prompt: Sequence[int], wanted: Any
) -> Iterator[str]:
    """A model whose layers the ranks share.  `wanted`: an `engines.Expected`."""
    checkpoint = FolderCheckpoint(Path(folder))
    offered = with_reference(platform.kernels(rank.device.info), reference_kernels())
    block_size = 16
    context = BuildContext(
        kernels=Kernels(offered),
        dtype=torch_dtype(dtype),
        device=torch.device(rank.device.torch_device),
        kv_dtype=dtype,
        block_size=block_size,
        weight_format=lambda name: DenseWeight(dtype="float32"),
        quantization=None,
        max_model_len=512,
        tp_rank=rank.rank,
        tp_size=rank.size,
        communicator=rank.communicator,
    )
    with closing(checkpoint), torch.inference_mode():
        model = build_model(checkpoint.config, context)
        model.load_weights(weight_readers(checkpoint))
        driver = Driver(model, block_size=block_size, device=context.device)
        tokens = driver.greedy(prompt, len(wanted.tokens))
    if differs := wanted.leaves(tokens, 1e-4 if dtype == "float32" else 1e-1):
        yield differs


def on_ranks(platform: Platform, infos: Sequence[DeviceInfo], job: Job, *rest: Any) -> list[str]:
    """What the ranks found wrong.  One that raises, dies or hangs is wrong too."""
    try:
        pickle.loads(pickle.dumps(platform))
    except Exception as error:  # whatever a stranger's class does
        pytest.skip(f"needs a platform that another process can be given: {error}")
    context = multiprocessing.get_context("spawn")
    said = context.Queue()
    address = f"127.0.0.1:{_free_port()}"
    processes = [
        context.Process(
            target=_work,
            args=(platform, info, rank, len(infos), address, job, rest, said),
            daemon=True,
        )
        for rank, info in enumerate(infos)
    ]
    for process in processes:
        process.start()
    try:
        found = [said.get(timeout=PATIENCE) for _ in processes]
    except queue.Empty:
        return [f"the ranks did not end within {PATIENCE:g} s"]
    finally:
        for process in processes:
            process.join(5)
            process.kill()
    return [f"rank {rank}: {words}" for rank, each in sorted(found) for words in each]


def _work(
    platform: Platform,
    info: DeviceInfo,
    rank: int,
    size: int,
    address: str,
    job: Job,
    rest: tuple[Any, ...],
    said: Any,
) -> None:
    try:
        torch.set_num_threads(1)
        device = platform.open(info, OpenOptions(threads=1))
        assert device.communicator is not None, "the device has no communicator"
        communicator = device.communicator(rank=rank, size=size, address=address)
        try:
            place = Rank(device, communicator, rank, size)
            said.put((rank, list(job(place, *rest))))
        finally:
            communicator.close()
            device.close()
    except BaseException as error:  # the parent is told, whatever it was
        said.put((rank, [f"{type(error).__name__}: {error}\n{traceback.format_exc()}"]))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
