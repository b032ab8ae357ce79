"""Random checkpoints of each family, and an engine driven by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from allmetal.config import EngineConfig
from allmetal.engine.engine import Engine
from allmetal.request import Request, SamplingParams
from allmetal_mlx.loading import full_name, shapes
from allmetal_mlx.models import family

SMALL: Mapping[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 256,
    "torch_dtype": "float32",
}
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "llama": {**SMALL, "model_type": "llama", "tie_word_embeddings": False},
    "qwen3": {**SMALL, "model_type": "qwen3", "tie_word_embeddings": True},
    "gemma3": {
        **SMALL,
        "model_type": "gemma3_text",
        "sliding_window": 24,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 16,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
    },
}
REFERENCE = dict.fromkeys(
    ("attention", "attention_input", "linear", "rms_norm", "gated_activation", "sampling"),
    "reference",
)
"""Chosen by name, these run the core's model on the core's kernels."""

Complete = Callable[..., list[list[int]]]


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(params=CONFIGS)
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / request.param, CONFIGS[request.param])


def write_checkpoint(folder: Path, config: Mapping[str, Any]) -> Path:
    """Weights of a size that makes layers matter."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)

    def values(short: str, shape: tuple[int, ...]) -> np.ndarray:
        if len(shape) == 1:
            return rng.uniform(0.5, 1.5, shape).astype(np.float32)
        gain = 8.0 if short in ("embed_tokens", "lm_head") else 2.0
        return (gain * rng.standard_normal(shape) / shape[1] ** 0.5).astype(np.float32)

    tensors = {full_name(name): values(name, s) for name, s in shapes(family(config, 8)).items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def complete(model: Path, prompts: Sequence[list[int]], **options: Any) -> list[list[int]]:
    """Greedy tokens after each prompt, all under way at once."""
    settings = {"platform": "mlx", "dtype": "float32", "kv_cache_memory": 1 << 20, **options}
    engine = Engine.from_config(EngineConfig(model=str(model), **settings))
    try:
        return drive(engine, prompts)
    finally:
        engine.close()


def drive(engine: Engine, prompts: Sequence[list[int]], tokens: int = 20) -> list[list[int]]:
    made: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompts):
        sampling = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
        engine.add(Request(request_id=str(index), prompt_token_ids=prompt, sampling=sampling))
        made[str(index)] = []
    while engine.has_work:
        for delta in engine.step():
            assert delta.error is None, delta.error
            made[delta.request_id] += delta.token_ids
    return list(made.values())


def random_prompts(*lengths: int) -> list[list[int]]:
    rng = np.random.default_rng(1)
    return [rng.integers(3, SMALL["vocab_size"], length).tolist() for length in lengths]
