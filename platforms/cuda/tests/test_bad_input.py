"""On a GPU: what cannot be done is said, and costs nobody else anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import make_tiny_llama

from allmetal.config import EngineConfig
from allmetal.engine.engine import Engine
from allmetal.errors import ConfigError
from allmetal.request import Request, SamplingParams
from allmetal.runner.graphs import DecodeGraphs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

HUGE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16384,
    "intermediate_size": 53248,
    "num_hidden_layers": 126,
    "num_attention_heads": 128,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("tiny"))


def engine_of(folder: Path, **options: Any) -> Engine:
    settings = {
        "kv_cache_memory": 1 << 22,
        "max_num_seqs": 6,
        "dtype": "float32",
        "prefix_caching": False,
        **options,
    }
    return Engine.from_config(EngineConfig(model=str(folder), platform="cuda", **settings))


def add(engine: Engine, count: int, **sampling: Any) -> None:
    for number in range(count):
        engine.add(
            Request(
                request_id=f"r{number}",
                prompt_token_ids=[7 * number + at % 90 for at in range(20 + number)],
                sampling=SamplingParams(
                    max_tokens=40, **{"temperature": 0.0, "ignore_eos": True, **sampling}
                ),
            )
        )


def finish(engine: Engine, tokens: dict[str, list[int]] | None = None) -> dict[str, list[int]]:
    found = {} if tokens is None else tokens
    while engine.has_work:
        for delta in engine.step():
            found.setdefault(delta.request_id, []).extend(delta.token_ids)
            if delta.error is not None:
                found.setdefault(f"{delta.request_id}: {delta.error}", [])
    return found


def test_a_model_larger_than_the_card_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    Path(tmp_path, "config.json").write_text(json.dumps(HUGE))
    before = torch.cuda.memory_allocated()
    with pytest.raises(ConfigError, match=r"weights take 7\d\d\.\d\d GiB in bfloat16, and .* free"):
        Engine.from_config(EngineConfig(model=str(tmp_path), load_format="dummy", platform="cuda"))
    assert torch.cuda.memory_allocated() - before < 1 << 28


def test_a_machine_without_a_compiler_is_refused_when_the_device_is_opened(tmp_path: Path) -> None:
    """Really: with nothing in Triton's cache, and a compiler that is not there."""
    opened = (
        "from allmetal_cuda import CudaPlatform\n"
        "from allmetal.errors import PlatformError\n"
        "platform = CudaPlatform()\n"
        "try: platform.open(platform.probe()[0])\n"
        "except PlatformError as error: print(error.message, error.hint, sep='\\n')\n"
    )
    env = {**os.environ, "CC": "/nowhere/cc", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", opened]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
    message, hint = done.stdout.splitlines()
    assert "Triton cannot build what launches its kernels" in message
    assert "/nowhere/cc" in message
    assert "install a C compiler" in hint


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "top_p": 0.9}], ids=str)
def test_not_a_number_in_a_recorded_step_ends_that_request_only(
    folder: Path, sampling: dict[str, Any]
) -> None:
    kind = {"seed": 5, **sampling}
    engine = engine_of(folder, graph_capture=True)
    add(engine, 4, **kind)
    expected = finish(engine)
    add(engine, 4, **kind)
    found: dict[str, list[int]] = {}
    while min(len(found.get(f"r{number}", ())) for number in range(4)) < 10:
        for delta in engine.step():
            found.setdefault(delta.request_id, []).extend(delta.token_ids)
    poisoned = engine._sequences["r1"].tables.groups[0][0]
    with torch.inference_mode():
        for block in engine.executor._runner._model._blocks:  # type: ignore[attr-defined]
            block.attention._cache[poisoned].fill_(float("nan"))
    found = finish(engine, found)
    assert [name for name in found if "no token can be chosen" in name] == [
        next(name for name in found if name.startswith("r1: "))
    ]
    assert 10 <= len(found["r1"]) < 14
    for name in ("r0", "r2", "r3"):
        assert expected[name] == found[name]
    with torch.inference_mode():
        for block in engine.executor._runner._model._blocks:  # type: ignore[attr-defined]
            block.attention._cache[poisoned].zero_()
    add(engine, 4, **kind)
    assert expected == finish(engine)
    engine.close()


def test_a_step_that_cannot_be_recorded_is_launched_by_hand_and_the_plan_says_why(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = engine_of(folder, graph_capture=False)
    add(plain, 4)
    expected = finish(plain)
    plain.close()
    run = DecodeGraphs._run

    def waits(graphs: DecodeGraphs, size: int) -> torch.Tensor:
        made = run(graphs, size)
        if size < 4:
            made.sum().item()
        return made

    monkeypatch.setattr(DecodeGraphs, "_run", waits)
    engine = engine_of(folder, graph_capture=None)
    assert engine.plan is not None
    row = engine.plan.decisions[-1]
    assert (row.feature, row.warn) == ("graph_capture", True)
    assert "at 2 sequences: GraphError: the step cannot be recorded" in row.reason
    assert "cannot be recorded" in caplog.text
    add(engine, 4)
    assert expected == finish(engine)
    engine.close()
