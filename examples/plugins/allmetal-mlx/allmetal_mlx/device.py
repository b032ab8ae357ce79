"""MLX's device, opened.  Its memory is the host's, so torch's side of it are host tensors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import version

import mlx.core as mx
import torch

from allmetal.platform.contract import (
    Advice,
    CommunicatorFactory,
    DeviceInfo,
    GraphCapture,
    Memory,
    ModelFacts,
    Streams,
)

MAX_KV_MEMORY = 4 << 30


class MlxDevice:
    torch_device = "cpu"
    asynchronous = False
    streams: Streams | None = None
    graphs: GraphCapture | None = None
    communicator: CommunicatorFactory | None = None

    def __init__(self, info: DeviceInfo) -> None:
        self.info = info

    def memory(self) -> Memory:
        """What MLX says the GPU should take of the shared memory, less what it holds; of the CPU
        back end, the host's free pages."""
        total = self.info.total_memory
        if mx.metal.is_available():
            size = mx.device_info().get("max_recommended_working_set_size", total)
            total = int(size)
            return Memory(free=max(0, total - mx.get_active_memory()), total=total)
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return Memory(free=min(free, total), total=total)

    def synchronize(self) -> None:
        mx.synchronize()

    def pin(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def versions(self) -> Mapping[str, str]:
        return {"mlx": version("mlx"), "torch": torch.__version__}

    def advice(self, model: ModelFacts) -> Advice:
        free = self.memory().free or 1
        wanted = (model.parameter_bytes + MAX_KV_MEMORY) / free
        return Advice(
            block_size=32,
            max_num_batched_tokens=512,
            max_num_seqs=32,
            kv_memory_fraction=round(min(0.8, wanted), 3),
        )

    def close(self) -> None:
        mx.clear_cache()
