"""A .gguf file, or the parts it was split into, as a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from allmetal.checkpoint.contract import CheckpointFormat, TensorInfo
from allmetal.checkpoint.gguf.hf_config import Facts, generation_config, hf_config
from allmetal.checkpoint.gguf.names import EXPERT, IGNORED, to_hugging_face
from allmetal.checkpoint.gguf.reader import GGUFFile, GGUFTensor, Value
from allmetal.errors import CheckpointError
from allmetal.quant.ggml import DENSE

_PART = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<count>\d{5})\.gguf")


class _Part(NamedTuple):
    """Bytes of a stored tensor."""

    stored: str
    start: int
    nbytes: int


class GGUFCheckpoint:
    """`metadata` is the first part's.  Raises CheckpointError, or UnknownModelError."""

    format: CheckpointFormat = "gguf"
    modules: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: list[GGUFFile] = []
        try:
            self._files += [GGUFFile(part) for part in parts(path)]
            self.metadata: Mapping[str, Value] = self._files[0].metadata
            self._owner = {name: file for file in self._files for name in file.tensors}
            self.architecture = self._architecture()
            self.config: Mapping[str, Any] = MappingProxyType(hf_config(self._facts()))
            self.generation_config: Mapping[str, Any] = MappingProxyType(
                generation_config(self.metadata)
            )
            self._source: dict[str, _Part] = {}
            self.tensors: Mapping[str, TensorInfo] = MappingProxyType(self._tensors())
        except BaseException:
            self.close()
            raise

    def _architecture(self) -> str:
        architecture = self.metadata.get("general.architecture")
        if not isinstance(architecture, str):
            raise CheckpointError(f"{self.path}: the metadata lacks general.architecture")
        return architecture

    def _facts(self) -> Facts:
        stored = {name: file.tensors[name] for name, file in self._owner.items()}
        return Facts(
            where=str(self.path),
            architecture=self.architecture,
            metadata=self.metadata,
            tensor_shapes={name: tensor.shape for name, tensor in stored.items()},
            factors={
                name: np.frombuffer(self._owner[name].data(name), np.float32).tolist()
                for name, tensor in stored.items()
                if name.startswith("rope_") and tensor.type == "F32"
            },
        )

    def _tensors(self) -> dict[str, TensorInfo]:
        tensors: dict[str, TensorInfo] = {}
        for file in self._files:
            for name, tensor in sorted(file.tensors.items(), key=lambda item: item[1].start):
                if not IGNORED.fullmatch(name):
                    tensors.update(self._tensor(name, tensor))
        return tensors

    def _tensor(self, name: str, tensor: GGUFTensor) -> Iterator[tuple[str, TensorInfo]]:
        """As many as the models of Hugging Face make of it: one, or one an expert."""
        source = to_hugging_face(
            name,
            self.architecture,
            num_heads=self.config["num_attention_heads"],
            num_kv_heads=self.config["num_key_value_heads"],
        )
        if source is None:
            raise CheckpointError(
                f"{self.path}: tensor {name!r} has no place in a model of the architecture"
                f" {self.architecture!r}"
            )
        stacked = EXPERT in source.name
        count, shape = (tensor.shape[0], tensor.shape[1:]) if stacked else (1, tensor.shape)
        info = TensorInfo(
            shape=shape,
            dtype=DENSE[tensor.type][0] if tensor.type in DENSE else tensor.type,
            nbytes=tensor.nbytes // count,
            paired_heads=source.paired_heads,
            shift=source.shift,
        )
        for index in range(count):
            target = source.name.replace(EXPERT, str(index))
            self._source[target] = _Part(name, index * info.nbytes, info.nbytes)
            yield target, info

    def data(self, name: str) -> memoryview:
        part = self._source[name]
        whole = self._owner[part.stored].data(part.stored)
        return whole[part.start : part.start + part.nbytes]

    def close(self) -> None:
        for file in self._files:
            file.close()


def parts(path: Path) -> list[Path]:
    """The files of a split model, found by the name of any of them."""
    match = _PART.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    files = [
        path.with_name(f"{match['stem']}-{part + 1:05d}-of-{count:05d}.gguf")
        for part in range(count)
    ]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise CheckpointError(
            f"{path.parent} lacks {len(missing)} of {count} parts: {', '.join(missing[:4])}",
            hint="the download is not complete: fetch these files",
        )
    return files
