"""What every format of checkpoint offers: a config in Hugging Face's words, and named bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from allmetal.quant.ggml import BLOCKS

CheckpointFormat: TypeAlias = Literal["safetensors", "gguf", "dummy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scales:
    """What a matrix's values are multiplied with: those of the stored tensor `name`.

    One for a `block` (rows, columns) of values, rounded up at the ends; without a block, one for
    a row, or a single one for all, whatever the `shape` it is stored in.  `rounds_activations`:
    the checkpoint is made for activations rounded to the same type.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    block: tuple[int, int] | None
    rounds_activations: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """One stored tensor.

    `dtype` is torch's name of a plain type, or the GGML name of a block type.  Two things that a
    converter did to the values are undone when they are read: with `paired_heads` > 0 the rows of
    each of so many heads lie in rotary pairs (0, half, 1, half + 1 ..) and come back in the order
    0, 1 ..; `shift` is added to every value.  With `scales` the values are times these.
    """

    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    paired_heads: int = 0
    shift: float = 0.0
    scales: Scales | None = None

    @property
    def is_blocks(self) -> bool:
        """Stored as blocks of quantised values, not as plain values."""
        return self.dtype in BLOCKS


class Checkpoint(Protocol):
    """An opened model: headers are read and held against the files, tensors are not read yet."""

    @property
    def path(self) -> Path: ...
    @property
    def format(self) -> CheckpointFormat: ...
    @property
    def config(self) -> Mapping[str, Any]:
        """config.json, or what it would say; has "model_type"."""
        ...

    @property
    def generation_config(self) -> Mapping[str, Any]:
        """generation_config.json; empty where there is none."""
        ...

    @property
    def modules(self) -> Mapping[str, Any]:
        """What makes vectors of texts, by kind; see `checkpoint.modules`.  Empty for most."""
        ...

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Hugging Face's parameter name -> tensor, in the order of the files."""
        ...

    def data(self, name: str) -> memoryview:
        """The tensor's bytes as stored, read-only and mapped: only what is touched is read."""
        ...

    def close(self) -> None: ...
