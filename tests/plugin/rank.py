"""One rank of a model that ranks share: rank.py RANK SIZE ADDRESS MODEL."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import torch

from allmetal.checkpoint import open_checkpoint
from allmetal.config import EngineConfig
from allmetal.platform import reference
from allmetal.platform.resolve import resolve
from allmetal.platform.select import Kernels, with_reference
from allmetal.runner.rank import build_context
from allmetal.runner.weights import weight_readers
from allmetal_models.registry import build_model
from allmetal_models.testing import Driver

PROMPT = [5, 17, 80, 3, 9, 9, 41]


class Counted:
    """A communicator that is seen at work."""

    def __init__(self, communicator: Any) -> None:
        self._communicator = communicator
        self.sums = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._communicator, name)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        self.sums += 1
        summed: torch.Tensor = self._communicator.all_reduce(x)
        return summed


def main(rank: int, size: int, address: str, model: str) -> None:
    torch.set_num_threads(1)
    config = EngineConfig(model=model)
    checkpoint = open_checkpoint(config)
    resolved = resolve(config, checkpoint)
    device = resolved.platform.open(resolved.device_info)
    kernels = Kernels(with_reference(resolved.platform.kernels(device.info), reference.kernels()))
    where = torch.device(device.torch_device)
    context = build_context(resolved.plan, where, kernels, checkpoint)
    counted = None
    if size > 1:
        assert device.communicator is not None
        counted = Counted(device.communicator(rank=rank, size=size, address=address))
        context = replace(context, tp_rank=rank, tp_size=size, communicator=counted)
    built = build_model(checkpoint.config, context)
    built.load_weights(weight_readers(checkpoint))
    driver = Driver(built, block_size=resolved.plan.block_size, device=where)
    tokens = driver.greedy(PROMPT, 16)
    print(json.dumps({"tokens": tokens, "sums": counted.sums if counted else 0}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
