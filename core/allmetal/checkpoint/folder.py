"""A folder as Hugging Face lays it out: config.json beside one or many safetensors files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from allmetal.checkpoint.contract import CheckpointFormat, TensorInfo
from allmetal.checkpoint.modules import read_modules
from allmetal.checkpoint.safetensors import SafetensorsFile
from allmetal.checkpoint.scaled import with_scales
from allmetal.errors import CheckpointError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


class FolderCheckpoint:
    """Headers of all shards are read and checked at once; Raises CheckpointError."""

    format: CheckpointFormat = "safetensors"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = read_config(path)
        self.generation_config = read_generation_config(path)
        self.modules = read_modules(path)
        self._files: list[SafetensorsFile] = []
        self._owner: dict[str, SafetensorsFile] = {}
        tensors: dict[str, TensorInfo] = {}
        try:
            for file, names in weight_files(path).items():
                shard = SafetensorsFile(file)
                self._files.append(shard)
                found = shard.tensors
                if names is not None:
                    _check_shard(file, names, found)
                tensors |= found
                self._owner |= dict.fromkeys(found, shard)
            joined = with_scales(self.config, tensors)
        except BaseException:
            self.close()
            raise
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(dict(joined))

    def data(self, name: str) -> memoryview:
        return self._owner[name].data(name)

    def close(self) -> None:
        for file in self._files:
            file.close()


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object.  Raises CheckpointError when it is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise CheckpointError(f"{path} cannot be read: {e.strerror or e}") from e
    except ValueError as e:
        raise CheckpointError(f"{path} is not JSON: {e}", hint="fetch it again") from e
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds no JSON object")
    return value


def read_config(folder: Path) -> Mapping[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        found = ", ".join(sorted(p.name for p in folder.iterdir())[:8]) or "nothing"
        raise CheckpointError(
            f"{folder} has no config.json (it holds {found})",
            hint="give the folder that the model's config.json and *.safetensors are in,"
            " or a .gguf file",
        )
    config = read_json(path)
    if "model_type" not in config:
        raise CheckpointError(f"{path} names no model_type", hint="it may be no model's config")
    return MappingProxyType(config)


def read_generation_config(folder: Path) -> Mapping[str, Any]:
    path = folder / "generation_config.json"
    return MappingProxyType(read_json(path) if path.is_file() else {})


def weight_files(folder: Path) -> dict[Path, set[str] | None]:
    """Safetensors file -> the tensors an index expects in it (None: there is no index)."""
    if (folder / INDEX).is_file():
        return _indexed(folder)
    if (folder / SINGLE).is_file():
        return {folder / SINGLE: None}
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        others = sorted(
            p.name for pattern in ("*.bin", "*.pt", "*.pth", "*.gguf") for p in folder.glob(pattern)
        )
        raise CheckpointError(
            f"{folder} has no *.safetensors files"
            + (f" (it has {', '.join(others[:4])})" if others else ""),
            hint="give the .gguf file itself"
            if any(name.endswith(".gguf") for name in others)
            else "convert the weights to safetensors, or pass --load-format dummy for random ones",
        )
    return dict.fromkeys(files)


def _indexed(folder: Path) -> dict[Path, set[str] | None]:
    index = read_json(folder / INDEX).get("weight_map")
    if not isinstance(index, dict) or not all(isinstance(f, str) for f in index.values()):
        raise CheckpointError(f"{folder / INDEX} has no weight_map")
    files: dict[Path, set[str] | None] = {}
    for name, file in index.items():
        names = files.setdefault(folder / file, set())
        assert names is not None
        names.add(name)
    missing = [path.name for path in files if not path.is_file()]
    if missing:
        raise CheckpointError(
            f"{folder} lacks {len(missing)} of {len(files)} shards: {', '.join(missing[:4])}",
            hint="the download is not complete: fetch these files",
        )
    return dict(sorted(files.items()))


def _check_shard(file: Path, expected: set[str], found: Mapping[str, TensorInfo]) -> None:
    if lacking := sorted(expected - found.keys()):
        raise CheckpointError(
            f"{file} lacks {len(lacking)} tensors that {INDEX} places there,"
            f" among them {lacking[0]!r}",
            hint="shards and index belong to different versions: fetch them again",
        )
