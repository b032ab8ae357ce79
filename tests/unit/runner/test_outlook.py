"""What weights will take is told before they are loaded."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from allmetal.config import EngineConfig
from allmetal.runner.explain import explain

OPTIONS = {"platform": "cpu", "threads": 1, "kv_cache_memory": 1 << 20}


@pytest.mark.parametrize(
    ("dtype", "quantization", "share"),
    [("float32", None, 1.0), ("bfloat16", None, 0.5), ("float32", "int8", 0.45)],
)
def test_weights_take_what_they_become(
    tiny_llama: Path, dtype: str, quantization: str | None, share: float
) -> None:
    config = EngineConfig(
        model=str(tiny_llama),
        dtype=dtype,  # type: ignore[arg-type]
        quantization=quantization,
        **OPTIONS,  # type: ignore[arg-type]
    )
    made = explain(config)
    stored = made.plan.model.parameter_bytes

    if quantization is None:
        assert share * stored == made.memory.weights
    else:  # all but the embedding and the norms, with a scale a row
        assert 0.25 * stored < made.memory.weights < share * stored
    assert ("as stored" in made.to_text()) == (share == 1.0)


def test_a_cache_that_does_not_fit_says_so_below_what_does(tiny_llama: Path) -> None:
    config = EngineConfig(model=str(tiny_llama), platform="cpu", memory_fraction=1e-9)
    text = explain(config).to_text()

    assert "does not fit: no memory is left for keys and values" in text
    assert re.search(r"\n {13,}hint: ", text)
