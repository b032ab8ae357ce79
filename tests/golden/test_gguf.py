"""A family's GGUF file computes what transformers' own model computes.

The files are written as llama.cpp's converter writes them, in float32, so that every difference is
one of names, order, shifts or settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf_files
import golden
import pytest
import transformers
from transformers import PretrainedConfig

from allmetal.checkpoint.gguf.checkpoint import GGUFCheckpoint

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 200.0},
}

CASES: Mapping[str, Callable[[], PretrainedConfig]] = {
    **{
        name: golden.CASES[name]
        for name in ("llama", "llama-biases", "llama-linear", "llama-yarn", "qwen2", "qwen3")
    },
    **{name: golden.CASES[name] for name in ("gemma", "phi3", "phi3-partial", "phi3-longrope")},
    **{name: golden.CASES[name] for name in ("olmo2", "granite", "glm4")},
    **{name: golden.CASES[name] for name in ("mixtral", "olmoe")},
    # Files cannot say that a layer is dense.
    "qwen3moe": golden.case(
        "Qwen3MoeConfig",
        head_dim=16,
        num_experts=7,
        num_experts_per_tok=3,
        moe_intermediate_size=24,
        norm_topk_prob=True,
    ),
    "llama3": golden.case("LlamaConfig", rope_parameters=LLAMA3),
    # Files cannot say these: llama.cpp scales queries by the head, and fixes the layers' order.
    "gemma2": golden.case(
        "Gemma2Config",
        head_dim=16,
        sliding_window=7,
        query_pre_attn_scalar=16,
        attn_logit_softcapping=1.5,
        final_logit_softcapping=4.0,
    ),
    "gemma3": golden.case(
        "Gemma3TextConfig",
        head_dim=16,
        sliding_window=9,
        query_pre_attn_scalar=16,
        num_hidden_layers=7,
        rope_parameters=GEMMA3_ROPE,
    ),
    "smollm3": golden.case("SmolLM3Config", num_hidden_layers=5, no_rope_layer_interval=4),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_gguf_file_gives_transformers_logits(name: str, tmp_path: Path) -> None:
    expected = golden.make(CASES[name](), tmp_path / "hf")
    path = gguf_files.write_model(tmp_path / "model.gguf", expected)

    checkpoint = GGUFCheckpoint(path)
    ours = golden.load(path, checkpoint=checkpoint)

    ids = golden.prompt(40)
    (logits,) = golden.drive(ours).feed(ids)
    assert golden.distance(logits, golden.expected_logits(expected, ids)) < 1e-5
    checkpoint.close()


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_blocks_give_what_their_values_give(kind: str, tmp_path: Path) -> None:
    """Against a transformers model whose weights went through the same blocks."""
    config = golden.case("LlamaConfig", hidden_size=96, intermediate_size=128)()
    original = golden.make(config, tmp_path / "hf")
    path = gguf_files.write_model(tmp_path / "model.gguf", original, kind)

    expected = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="model.gguf", dtype="float32"
    )
    checkpoint = GGUFCheckpoint(path)
    assert any(info.is_blocks for info in checkpoint.tensors.values())
    ours = golden.load(path, checkpoint=checkpoint)

    ids = golden.prompt(40)
    (logits,) = golden.drive(ours).feed(ids)
    assert golden.distance(logits, golden.expected_logits(expected, ids)) < 1e-5


def test_a_config_comes_back_as_it_was(tmp_path: Path) -> None:
    expected = golden.make(CASES["gemma3"](), tmp_path / "hf")
    checkpoint = GGUFCheckpoint(gguf_files.write_model(tmp_path / "m.gguf", expected))

    wanted: dict[str, Any] = expected.config.to_dict()
    same = ("model_type", "hidden_size", "layer_types", "sliding_window", "vocab_size", "head_dim")
    assert {key: wanted[key] for key in same} == {key: checkpoint.config[key] for key in same}
    assert checkpoint.config["rope_local_base_freq"] == 200.0
    assert checkpoint.config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
