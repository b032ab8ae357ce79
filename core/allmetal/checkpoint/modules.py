"""What sentence-transformers puts behind a model to make vectors of texts.

Source: the library's `modules.json`, a list of modules of which each may have a folder with its
own config.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from allmetal.errors import CheckpointError


def read_modules(folder: Path) -> Mapping[str, Any]:
    """Kind of a module ("Pooling", "Normalize" ..) -> its settings; empty where there are none."""
    path = folder / "modules.json"
    if not path.is_file():
        return MappingProxyType({})
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))
        return MappingProxyType(
            {
                str(module["type"]).rpartition(".")[2]: _settings(folder / str(module["path"]))
                for module in listed
                if module["path"]
            }
        )
    except (OSError, ValueError, TypeError, KeyError) as e:
        raise CheckpointError(f"{path} cannot be read: {e!r}", hint="fetch it again") from e


def _settings(folder: Path) -> Mapping[str, Any]:
    path = folder / "config.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if not isinstance(found, dict):
        raise TypeError(f"{path} holds no JSON object")
    return MappingProxyType(found)
