from __future__ import annotations

import logging
from pathlib import Path

import pytest

from allmetal.config import EngineConfig
from allmetal.engine.engine import Engine


def test_a_wish_that_fell_back_is_logged_at_the_start(
    tiny_llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = EngineConfig(
        model=str(tiny_llama),
        platform="null",
        kv_cache_dtype="int8",
        fallback={"kv_cache_dtype": "warn"},
    )
    with caplog.at_level(logging.WARNING):
        Engine.from_config(config).close()
    assert any("kv_cache_dtype int8 cannot be had" in message for message in caplog.messages)
