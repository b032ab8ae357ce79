"""From what the user calls a model to an opened checkpoint."""

from __future__ import annotations

from pathlib import Path

from allmetal.checkpoint.contract import Checkpoint
from allmetal.checkpoint.dummy import DummyCheckpoint
from allmetal.checkpoint.folder import FolderCheckpoint, read_config, read_generation_config
from allmetal.checkpoint.gguf.checkpoint import GGUFCheckpoint
from allmetal.checkpoint.hub import download, hub_name
from allmetal.checkpoint.modules import read_modules
from allmetal.config import EngineConfig
from allmetal.errors import CheckpointError


def open_checkpoint(config: EngineConfig) -> Checkpoint:
    """Find the model and read its headers.  Raises CheckpointError saying what is wrong where."""
    dummy = config.load_format == "dummy"
    path = locate(config.model, config.revision, weights=not dummy)
    gguf = path.suffix == ".gguf"
    if config.load_format == "safetensors" and gguf:
        raise CheckpointError(
            f"{path} is a .gguf file, and --load-format safetensors was said",
            hint="leave --load-format out",
        )
    if config.load_format == "gguf" and not gguf:
        raise CheckpointError(
            f"{path} is no .gguf file, and --load-format gguf was said",
            hint="leave --load-format out, or give the .gguf file",
        )
    if not dummy:
        return GGUFCheckpoint(path) if gguf else FolderCheckpoint(path)
    if not gguf:
        return DummyCheckpoint(
            path, read_config(path), read_generation_config(path), read_modules(path)
        )
    file = GGUFCheckpoint(path)
    try:
        return DummyCheckpoint(path, file.config, file.generation_config)
    finally:
        file.close()


def locate(model: str, revision: str | None = None, *, weights: bool = True) -> Path:
    """A local folder or .gguf file; a name on the hub is fetched (without `weights`: all but them).

    Raises CheckpointError when there is no such thing.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return _gguf_inside(path) or path
    if path.is_file():
        if path.suffix != ".gguf":
            raise CheckpointError(
                f"{path} is neither a folder nor a .gguf file",
                hint=f"give the folder: {path.parent}",
            )
        return path
    name = hub_name(model)
    if name is None:
        raise CheckpointError(
            f"there is no folder or file {model}",
            hint="give a folder with config.json and *.safetensors, a .gguf file,"
            " or a name on the hub such as owner/name",
        )
    return download(name, revision, weights=weights)


def _gguf_inside(folder: Path) -> Path | None:
    """The .gguf file of a folder that holds nothing else to open."""
    if (folder / "config.json").is_file():
        return None
    files = sorted(folder.glob("*.gguf"))
    if len(files) > 1 and "-00001-of-" not in files[0].name:
        raise CheckpointError(
            f"{folder} holds several .gguf files: {', '.join(f.name for f in files[:6])}",
            hint=f"give one of them: {files[0]}",
        )
    return files[0] if files else None
