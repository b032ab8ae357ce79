"""What tests of several folders share."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tiny import make_tiny_llama


def pytest_configure() -> None:
    # A shell starts its background jobs with SIGINT ignored, and so would the programs be that
    # tests interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny random llama, its tokenizer and a chat template."""
    return make_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny-llama", max_model_len=4096)
