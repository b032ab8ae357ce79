"""Names on the hub, with the hub itself played by its library's own errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import pytest
from huggingface_hub import errors

from allmetal.checkpoint.hub import HubName, download, hub_name
from allmetal.checkpoint.open import locate
from allmetal.errors import CheckpointError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("owner/name", HubName("owner/name")),
        ("owner/name-1.5_B", HubName("owner/name-1.5_B")),
        ("owner/name-GGUF:Q4_K_M", HubName("owner/name-GGUF", "Q4_K_M")),
        ("owner/name:model-q8.gguf", HubName("owner/name", "model-q8.gguf")),
        ("name", None),
        ("./owner/name", None),
        ("/owner/name", None),
        ("../name", None),
        ("a/b/c", None),
        ("~/name", None),
    ],
)
def test_what_may_be_a_name_on_the_hub(text: str, expected: HubName | None) -> None:
    assert expected == hub_name(text)


def raising(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def snapshot_download(*_: Any, **__: Any) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)


def response(status: int) -> httpx.Response:
    return httpx.Response(status, request=httpx.Request("GET", "https://huggingface.co"))


@pytest.mark.parametrize(
    ("error", "message", "hint"),
    [
        (errors.LocalEntryNotFoundError("x"), "the hub cannot be reached", "give its folder"),
        (errors.OfflineModeIsEnabled("x"), "the hub cannot be reached", "give its folder"),
        (OSError("no route"), "cannot be fetched from the hub: no route", "give its folder"),
        (
            errors.RepositoryNotFoundError("x", response=response(404)),
            "no such model",
            "hf auth login",
        ),
        (errors.GatedRepoError("x", response=response(403)), "terms are accepted", "hf auth login"),
        (errors.RevisionNotFoundError("x", response=response(404)), "no revision v9", None),
    ],
)
def test_each_failure_of_the_hub_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, error: Exception, message: str, hint: str | None
) -> None:
    raising(monkeypatch, error)

    with pytest.raises(CheckpointError) as raised:
        locate("owner/name", "v9")

    assert message in raised.value.message
    assert hint is None or hint in (raised.value.hint or "")


def serving(monkeypatch: pytest.MonkeyPatch, folder: Path) -> dict[str, Any]:
    asked: dict[str, Any] = {}

    def snapshot_download(repo: str, **options: Any) -> str:
        asked.update(options, repo=repo)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return asked


def test_only_what_is_needed_is_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = serving(monkeypatch, tmp_path)

    assert tmp_path == download(HubName("o/n"), "main", weights=True)
    assert "*.safetensors" in asked["allow_patterns"]
    assert asked["revision"] == "main"
    assert not any("bin" in pattern for pattern in asked["allow_patterns"])

    download(HubName("o/n"), None, weights=False)
    assert "*.safetensors" not in asked["allow_patterns"]


def test_one_of_several_gguf_files_is_named_after_a_colon(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("m-Q4_K_M.gguf", "m-Q8_0.gguf"):
        (tmp_path / name).write_bytes(b"")
    asked = serving(monkeypatch, tmp_path)

    found = download(HubName("o/n", "Q8_0"), None, weights=True)

    assert tmp_path / "m-Q8_0.gguf" == found
    assert "*Q8_0*.gguf" in asked["allow_patterns"]
    with pytest.raises(CheckpointError, match=r"several \.gguf files named like 'Q'"):
        download(HubName("o/n", "Q"), None, weights=True)
    with pytest.raises(CheckpointError, match=r"no \.gguf file named like 'Q2'"):
        download(HubName("o/n", "Q2"), None, weights=True)
