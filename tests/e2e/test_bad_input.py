"""What a user can get wrong, typed at a real command line: each answer says what, why and a hint,
without a traceback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from allmetal import LLM, SamplingParams
from allmetal.errors import RequestError


def allmetal(*words: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """`path`: one more folder to find distributions in."""
    env = os.environ | ({"PYTHONPATH": str(path)} if path else {})
    command = [sys.executable, "-m", "allmetal", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env=env)


def run(*words: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    return allmetal("run", *words, "--threads", "1", path=path)


def assert_refused(done: subprocess.CompletedProcess[str], *said: str) -> None:
    assert done.returncode in (1, 2), done.stderr
    assert "error: " in done.stderr
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr
    for words in said:
        assert words in done.stderr


@pytest.fixture
def copy(tiny_llama: Path, tmp_path: Path) -> Path:
    return shutil.copytree(tiny_llama, tmp_path / "model")


def test_a_model_that_is_not_there() -> None:
    assert_refused(run("/no/such/model", "hello"), "/no/such/model")


def test_truncated_weights(copy: Path) -> None:
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    assert_refused(run(str(copy), "hello"), "model.safetensors")


def test_an_unknown_architecture(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "model_type": "abacus"}))
    assert_refused(run(str(copy), "hello"), "abacus", "llama")


@pytest.mark.parametrize(
    ("file", "field", "value"),
    [
        ("config.json", "num_attention_heads", 0),
        ("config.json", "hidden_size", -64),
        ("config.json", "max_position_embeddings", "8k"),
        ("config.json", "max_position_embeddings", 0),
        ("config.json", "rope_scaling", "linear"),
        ("generation_config.json", "eos_token_id", "</s>"),
        ("generation_config.json", "top_p", 5),
    ],
)
def test_a_field_that_holds_no_such_thing(copy: Path, file: str, field: str, value: object) -> None:
    config = json.loads((copy / file).read_text())
    (copy / file).write_text(json.dumps({**config, field: value}))
    done = run(str(copy), "hello")
    assert done.returncode == 1, done.stderr
    assert "this is a bug" not in done.stderr
    assert field.split("_")[0] in done.stderr


def test_a_tensor_of_another_shape(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    config["intermediate_size"] += 1
    (copy / "config.json").write_text(json.dumps(config))
    assert_refused(run(str(copy), "hello"), "gate_proj")


def test_a_prompt_longer_than_the_context(tiny_llama: Path) -> None:
    done = run(str(tiny_llama), "fox " * 200, "--max-model-len", "64")
    assert_refused(done, "--max-model-len")


def test_no_cache_memory(tiny_llama: Path) -> None:
    assert_refused(run(str(tiny_llama), "hello", "--kv-cache-memory", "0"), "kv_cache_memory")


def test_too_little_cache_memory(tiny_llama: Path) -> None:
    done = run(str(tiny_llama), "hello", "--kv-cache-memory", "100")
    assert_refused(done, "--kv-cache-memory")


def test_a_context_that_the_cache_cannot_hold(tiny_llama: Path) -> None:
    done = run(str(tiny_llama), "hello", "--kv-cache-memory", "64KiB", "--max-model-len", "512")
    assert_refused(done, "--max-model-len")


def test_a_context_that_the_model_was_not_made_for(tiny_llama: Path) -> None:
    assert_refused(run(str(tiny_llama), "hello", "--max-model-len", "100000"), "4096")


def test_a_negative_temperature(tiny_llama: Path) -> None:
    assert_refused(run(str(tiny_llama), "hello", "--temperature", "-1"), "temperature")


def test_a_platform_that_is_not_there(tiny_llama: Path) -> None:
    assert_refused(run(str(tiny_llama), "hello", "--platform", "abacus"), "abacus", "cpu")


def test_a_kernel_that_is_not_there(tiny_llama: Path) -> None:
    done = run(str(tiny_llama), "hello", "--kernel", "attention=abacus")
    assert_refused(done, "abacus", "reference")


def test_a_key_value_type_that_is_not_there(tiny_llama: Path) -> None:
    done = run(str(tiny_llama), "hello", "--kv-cache-dtype", "abacus")
    assert_refused(done, "abacus")


@pytest.fixture
def broken_plugin(tmp_path: Path) -> Path:
    """A folder with an installed distribution whose platform cannot be imported."""
    info = tmp_path / "site" / "allmetal_abacus-9.9.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: allmetal-abacus\nVersion: 9.9\n")
    (info / "entry_points.txt").write_text("[allmetal.platforms]\nabacus = abacus:Platform\n")
    (info.parent / "abacus.py").write_text("raise RuntimeError('a bead is missing')\n")
    return info.parent


def test_a_broken_plugin_is_named_and_does_not_stop_one_that_is_chosen(
    tiny_llama: Path, broken_plugin: Path
) -> None:
    words = (str(tiny_llama), "hello", "--max-tokens", "4")
    assert_refused(run(*words, path=broken_plugin), "abacus", "--platform cpu")
    done = run(*words, "--platform", "cpu", path=broken_plugin)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    doctor = allmetal("doctor", path=broken_plugin)
    assert "a bead is missing" in doctor.stdout + doctor.stderr
    chosen = run(str(tiny_llama), "hello", "--platform", "abacus", path=broken_plugin)
    assert_refused(chosen, "a bead is missing")


def test_the_engine_serves_on_after_each_refusal(tiny_llama: Path) -> None:
    with LLM(str(tiny_llama), max_model_len=64, threads=1) as llm:
        params = SamplingParams(max_tokens=8, temperature=0.0)
        [before] = llm.generate("One engine", params)
        for prompt, said in (([5] * 64, "64"), ([10**6], "vocabulary"), ([], "empty")):
            with pytest.raises(RequestError, match=said):
                llm.generate([prompt, "One engine"], params)
        [after] = llm.generate("One engine", params)
        assert before.outputs[0].token_ids == after.outputs[0].token_ids
        pool = llm.engine.cache.pool
        assert pool.num_free == pool.num_blocks - 1
