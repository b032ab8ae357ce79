"""What can be built, what is refused, and what is known of a model before it is built."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from made_up import GEMMA3, LLAMA, context

from allmetal.errors import CheckpointError, ModelError, UnknownModelError
from allmetal_models.facts import facts
from allmetal_models.plugin import MODELS
from allmetal_models.registry import build_model, find, model_types


@dataclass(frozen=True)
class Stored:
    nbytes: int
    dtype: str
    is_blocks: bool = False


def test_every_built_in_type_is_announced_and_has_a_file() -> None:
    assert MODELS.items() <= model_types().items()
    for model_type in MODELS:
        assert find({"model_type": model_type}).startswith("allmetal_models.")


@pytest.mark.parametrize("hf", [{"model_type": "mamba3"}, {}])
def test_an_unknown_type_is_answered_with_the_known_ones(hf: Mapping[str, Any]) -> None:
    with pytest.raises(UnknownModelError, match=r"gemma, gemma2, .*llama, mistral"):
        build_model(hf, context())


def test_a_quantisation_that_is_not_read_is_named() -> None:
    with pytest.raises(ModelError, match="'awq', which is not read"):
        build_model({**LLAMA, "quantization_config": {"quant_method": "awq"}}, context())


def test_a_config_that_lacks_a_size_is_refused_by_its_name() -> None:
    hf = {key: value for key, value in LLAMA.items() if key != "hidden_size"}
    with pytest.raises(CheckpointError, match=r"config.json of this llama lacks 'hidden_size'"):
        build_model(hf, context())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"hidden_act": "tanhshrink"}, "activation 'tanhshrink' is not known"),
        ({"rope_scaling": {"type": "spiral"}}, "rope scaling 'spiral' is not known"),
        ({"rope_scaling": {"type": "linear"}}, "needs a number 'factor'"),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
            "needs 4 numbers 'short_factor'",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        build_model({**LLAMA, **change}, context())


def test_a_gemma3_that_looks_ahead_is_refused() -> None:
    with pytest.raises(ModelError, match="later tokens"):
        build_model({**GEMMA3, "use_bidirectional_attention": True}, context())


def test_facts_come_from_the_language_model_of_a_larger_one() -> None:
    hf = {"model_type": "gemma3", "text_config": {**GEMMA3, "torch_dtype": "bfloat16"}}
    tensors = {
        "language_model.model.norm.weight": Stored(100, "bfloat16"),
        "vision_tower.weight": Stored(1000, "bfloat16"),
    }
    found = facts(hf, tensors)
    assert found.model_type == "gemma3"
    assert (found.num_layers, found.head_dim, found.max_model_len) == (2, 16, 64)
    assert found.dtype == "bfloat16"
    assert found.parameter_bytes == 100
    assert found.quantization is None


def test_a_published_gemma3_config_is_filled_up() -> None:
    """All that google/gemma-3-4b-it says of its language model."""
    hf = {
        "model_type": "gemma3",
        "text_config": {
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "model_type": "gemma3_text",
            "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
        "torch_dtype": "bfloat16",
    }
    found = facts(hf, {})
    assert (found.vocab_size, found.head_dim, found.max_model_len) == (262_208, 256, 131_072)
    # 3.88e9 parameters in the published count, of which the vision tower is not counted here.
    assert found.parameter_bytes / 2 == pytest.approx(3.88e9, rel=0.01)


@pytest.mark.parametrize(
    ("hf", "tensors", "expected"),
    [
        ({"dtype": "float16"}, {"a": Stored(4, "float32")}, "float16"),
        ({}, {"a": Stored(4, "float32"), "b": Stored(8, "bfloat16")}, "bfloat16"),
        ({}, {"a": Stored(4, "float32"), "b": Stored(2, "Q4_K", True)}, "bfloat16"),
        ({}, {"a": Stored(4, "float32")}, "float32"),
    ],
)
def test_the_dtype_is_the_configs_or_that_of_most_values(
    hf: dict[str, Any], tensors: dict[str, Stored], expected: str
) -> None:
    assert facts({**LLAMA, **hf}, tensors).dtype == expected


def test_block_formats_are_a_quantization() -> None:
    assert facts(LLAMA, {"a": Stored(2, "Q4_K", True)}).quantization == "gguf"


def test_facts_need_no_tensor_library() -> None:
    code = "import sys, allmetal_models.facts; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
