from __future__ import annotations

from pathlib import Path

import pytest
import small_tokenizers

from allmetal.text.tokenizer import Tokenizer


@pytest.fixture(scope="session", params=small_tokenizers.BACKENDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return small_tokenizers.as_tokenizer(small_tokenizers.BACKENDS[request.param]())


@pytest.fixture(autouse=True)
def cache_in_a_scratch_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLMETAL_CACHE", str(tmp_path / "cache"))
