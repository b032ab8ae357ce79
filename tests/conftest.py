"""What tests of several folders share."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import make_tiny_llama


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny random llama, its tokenizer and a chat template."""
    return make_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny-llama", max_model_len=4096)
