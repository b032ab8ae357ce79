"""A model without weights: its shape is known, its tensors are made up while loading."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from allmetal.checkpoint.contract import CheckpointFormat, TensorInfo


class DummyCheckpoint:
    """`tensors` is empty: the names and shapes are the built model's own."""

    format: CheckpointFormat = "dummy"
    tensors: Mapping[str, TensorInfo] = MappingProxyType({})

    def __init__(
        self,
        path: Path,
        config: Mapping[str, Any],
        generation_config: Mapping[str, Any],
        modules: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.path = path
        self.config = config
        self.generation_config = generation_config
        self.modules = modules

    def data(self, name: str) -> memoryview:
        raise KeyError(name)

    def close(self) -> None:
        pass
