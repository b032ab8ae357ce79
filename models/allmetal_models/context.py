"""What a model is built for: kernels, dtypes, device, and this rank's share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from allmetal.errors import ConfigError
from allmetal.platform.specs import WeightFormat
from allmetal_models.pooling_config import PoolingConfig

if TYPE_CHECKING:
    from allmetal.platform.contract import Communicator
    from allmetal.platform.select import Kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildContext:
    """Everything a layer may ask for at construction.

    `weight_format` maps a checkpoint tensor's name to its stored format and raises KeyError for a
    name that the checkpoint lacks.  `kv_dtype` is a torch dtype's name.  `quantization` "int8"
    turns dense linear weights into 8-bit integers while they load.  With `tp_size` ranks, layers
    hold their share of heads, channels and vocabulary and need a `communicator` to meet.
    `pooling`: vectors of texts are wanted, and no logits.
    """

    kernels: Kernels
    dtype: torch.dtype
    device: torch.device
    kv_dtype: str
    block_size: int
    weight_format: Callable[[str], WeightFormat]
    quantization: str | None
    max_model_len: int
    tp_rank: int = 0
    tp_size: int = 1
    communicator: Communicator | None = None
    pooling: PoolingConfig | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.tp_rank < self.tp_size:
            raise ConfigError(f"rank {self.tp_rank} is not one of {self.tp_size} ranks")
        if self.tp_size > 1 and self.communicator is None:
            raise ConfigError(
                f"a model over {self.tp_size} ranks needs a communicator, and there is none",
                hint="run on one device",
            )

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def share(self, total: int, what: str) -> tuple[int, int]:
        """(start, length) of this rank's equal part of `total`.  ConfigError if it is uneven."""
        if total % self.tp_size:
            raise ConfigError(f"{total} {what} do not divide among {self.tp_size} ranks")
        length = total // self.tp_size
        return self.tp_rank * length, length
