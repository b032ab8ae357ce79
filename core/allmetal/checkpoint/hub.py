"""Models by their name on the Hugging Face hub."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from allmetal.errors import CheckpointError

NAME = re.compile(r"(?P<repo>[\w][\w.-]*/[\w][\w.-]*)(?::(?P<file>[\w.-]+))?")
OFFLINE_HINT = "download the model elsewhere and give its folder or .gguf file"

CONFIG_FILES = ["*.json", "*.jinja", "*.model", "*.txt"]


@dataclass(frozen=True, slots=True)
class HubName:
    """`owner/name`, or `owner/name:QUANT` for one of several .gguf files (Q4_K_M, say)."""

    repo: str
    file: str | None = None


def hub_name(text: str) -> HubName | None:
    """None where it cannot be a name on the hub."""
    match = NAME.fullmatch(text)
    return HubName(match["repo"], match["file"]) if match else None


def download(name: HubName, revision: str | None, *, weights: bool) -> Path:
    """The local folder, or the .gguf file, of a snapshot; its progress is shown.

    Raises CheckpointError when the hub cannot be reached and no copy is in its cache, when there
    is no such model, or when it may not be read.
    """
    patterns = list(CONFIG_FILES)
    if name.file is not None:
        patterns.append(f"*{name.file}*" if name.file.endswith(".gguf") else f"*{name.file}*.gguf")
    elif weights:
        patterns.append("*.safetensors")
    folder = _snapshot(name, revision, patterns)
    if name.file is None:
        return folder
    files = sorted(f for f in folder.rglob("*.gguf") if name.file in f.name)
    if not files:
        raise CheckpointError(f"{name.repo} on the hub has no .gguf file named like {name.file!r}")
    if len(files) > 1 and "-00001-of-" not in files[0].name:
        raise CheckpointError(
            f"{name.repo} on the hub has several .gguf files named like {name.file!r}:"
            f" {', '.join(f.name for f in files[:6])}",
            hint=f"name one, as in {name.repo}:{files[0].name}",
        )
    return files[0]


def _snapshot(name: HubName, revision: str | None, patterns: list[str]) -> Path:
    from huggingface_hub import errors, snapshot_download

    at = f" at revision {revision}" if revision else ""
    try:
        return Path(snapshot_download(name.repo, revision=revision, allow_patterns=patterns))
    except errors.GatedRepoError as e:
        raise CheckpointError(
            f"{name.repo} on the hub may only be read after its terms are accepted",
            hint=f"accept them at https://huggingface.co/{name.repo}, then: hf auth login",
        ) from e
    except errors.RevisionNotFoundError as e:
        raise CheckpointError(f"{name.repo} on the hub has no revision {revision}") from e
    except errors.RepositoryNotFoundError as e:
        raise CheckpointError(
            f"there is no folder {name.repo}, and no such model on the hub (or it is private)",
            hint="check the name; for a private model: hf auth login",
        ) from e
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as e:
        raise CheckpointError(
            f"there is no folder {name.repo}, the hub cannot be reached,"
            f" and its cache has no copy of {name.repo}{at}",
            hint=OFFLINE_HINT,
        ) from e
    except (errors.HfHubHTTPError, errors.HFValidationError, OSError) as e:
        raise CheckpointError(
            f"{name.repo}{at} cannot be fetched from the hub: {e}", hint=OFFLINE_HINT
        ) from e
