"""Find and read the tokenizer of a model: from a folder's files, or from a GGUF's metadata."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from allmetal.checkpoint import Checkpoint, open_checkpoint
from allmetal.checkpoint.gguf.checkpoint import GGUFCheckpoint
from allmetal.checkpoint.gguf.reader import GGUFFile
from allmetal.checkpoint.open import locate
from allmetal.config import EngineConfig
from allmetal.errors import CheckpointError
from allmetal.text.folder import folder_parts
from allmetal.text.gguf import gguf_parts
from allmetal.text.tokenizer import Tokenizer, TokenizerParts


def load_tokenizer(
    source: Checkpoint | Path, config: EngineConfig | None = None, *, late: bool = False
) -> Tokenizer:
    """`config` may name another tokenizer or chat template than the model's own.

    `late`: be ready for a first text soon, and do the rest of the work when it is needed.
    Raises CheckpointError when there is none, or it cannot be read.
    """
    if config is not None and config.tokenizer is not None:
        parts = _from_path(_locate(config.tokenizer), late=late)
    elif isinstance(source, GGUFCheckpoint):
        parts = gguf_parts(source.metadata, str(source.path), late=late)
    else:
        parts = _from_path(source if isinstance(source, Path) else source.path, late=late)
    if not isinstance(source, Path):
        parts = replace(parts, eos_token_ids=_ends(source, parts))
    if config is not None and config.chat_template is not None:
        parts = replace(parts, chat_templates={"default": _template_file(config.chat_template)})
    return Tokenizer(parts)


def load_text(config: EngineConfig, *, late: bool = False) -> tuple[Tokenizer, dict[str, Any]]:
    """What a front end needs of a model: its tokenizer (`late` as above), and what its makers
    recommend for sampling (generation_config.json)."""
    with closing(open_checkpoint(config)) as checkpoint:
        return load_tokenizer(checkpoint, config, late=late), dict(checkpoint.generation_config)


def _locate(name: str) -> Path:
    path = Path(name).expanduser()
    if path.name == "tokenizer.json" and path.is_file():
        return path.parent
    return locate(name, weights=False)


def _from_path(path: Path, *, late: bool) -> TokenizerParts:
    if path.suffix != ".gguf":
        return folder_parts(path)
    file = GGUFFile(path)
    try:
        return gguf_parts(file.metadata, str(path), late=late)
    finally:
        file.close()


def _ends(checkpoint: Checkpoint, parts: TokenizerParts) -> tuple[int, ...]:
    """Ids that end a text, each once: generation_config's (else config's), then the tokenizer's."""
    config = checkpoint.config
    stated = checkpoint.generation_config.get("eos_token_id")
    if stated is None:
        stated = config.get("eos_token_id")
    if stated is None:
        stated = (config.get("text_config") or {}).get("eos_token_id")
    ids = stated if isinstance(stated, list) else [] if stated is None else [stated]
    if strange := [item for item in ids if not isinstance(item, int)]:
        raise CheckpointError(
            f"{checkpoint.path}: eos_token_id must be a number, not {strange[0]!r}"
        )
    return tuple(dict.fromkeys([*ids, *parts.eos_token_ids]))


def _template_file(name: str) -> str:
    try:
        return Path(name).expanduser().read_text(encoding="utf-8")
    except OSError as e:
        raise CheckpointError(
            f"the chat template {name} cannot be read: {e.strerror or e}",
            hint="--chat-template takes a file with a Jinja template",
        ) from e
