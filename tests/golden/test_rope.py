"""Rotary tables are those of transformers, in both spellings of a config and beyond its length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import golden
import pytest
import torch
import transformers
from golden import LONGROPE, Golden, distance, drive, expected_greedy, expected_logits, load, prompt
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from allmetal_models.layers.rope import cos_sin_table
from allmetal_models.rope_config import longest_sequence, rope_config

HEAD_DIM = 64
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
KINDS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 2.0},
    "llama3": LLAMA3,
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 1024},
    "yarn-mscale": {
        "factor": 40.0,
        "original_max_position_embeddings": 1024,
        "mscale": 0.7,
        "mscale_all_dim": 1.0,
        "beta_fast": 20,
        "beta_slow": 2,
    },
    "yarn-attention": {
        "factor": 4.0,
        "original_max_position_embeddings": 1024,
        "attention_factor": 0.8,
        "truncate": False,
    },
}


def expected_table(embedding: Any, num_positions: int, **layer: str) -> torch.Tensor:
    cos, sin = embedding(torch.zeros(1), torch.arange(num_positions)[None], **layer)
    half = cos.shape[-1] // 2
    return torch.cat([cos[0, :, :half], sin[0, :, :half]], dim=-1)


def older(settings: dict[str, Any]) -> dict[str, Any]:
    """As configs were written before `rope_parameters`."""
    scaling = {("type" if k == "rope_type" else k): v for k, v in settings.items()}
    theta = scaling.pop("rope_theta")
    return {"rope_theta": theta, "rope_scaling": None if len(scaling) == 1 else scaling}


def newer(settings: dict[str, Any]) -> dict[str, Any]:
    return {"rope_parameters": dict(settings)}


@pytest.mark.parametrize("spelling", [older, newer])
@pytest.mark.parametrize("name", KINDS)
def test_a_table_is_that_of_transformers(
    name: str, spelling: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    settings = {"rope_type": name.split("-")[0], "rope_theta": 500_000.0, **KINDS[name]}
    sizes = {"head_dim": HEAD_DIM, "max_position_embeddings": 4096}
    config = transformers.LlamaConfig(**sizes, **spelling(settings))
    expected = expected_table(LlamaRotaryEmbedding(config), 4096)
    hf = {**sizes, **spelling(settings)}
    found = cos_sin_table(rope_config(hf, HEAD_DIM), 4096)
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-4)
    assert distance(found, expected) < 1e-5


@pytest.mark.parametrize("length", [64, 100])
@pytest.mark.parametrize("kind", ["su", "longrope"])
def test_longrope_follows_the_longest_sequence_served(kind: str, length: int) -> None:
    """64 positions were trained; the table for 100 is that of a sequence of 100."""
    hf = {
        "rope_theta": 300.0,
        "rope_scaling": {"type": kind, **LONGROPE},
        "max_position_embeddings": 128,
        "original_max_position_embeddings": 64,
    }
    config = transformers.Phi3Config(
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=4,
        pad_token_id=0,
        **{**hf, "rope_scaling": {"type": "longrope", **LONGROPE}},
    )
    expected = expected_table(Phi3RotaryEmbedding(config), length)
    assert distance(cos_sin_table(rope_config(hf, 8), length), expected) < 1e-6


@pytest.mark.parametrize("layer_type", ["full_attention", "sliding_attention"])
def test_gemma3_in_the_older_spelling_scales_the_full_layers_only(layer_type: str) -> None:
    hf = {
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 20_000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "max_position_embeddings": 1024,
    }
    config = transformers.Gemma3TextConfig(head_dim=HEAD_DIM, **hf)
    expected = expected_table(Gemma3RotaryEmbedding(config), 1024, layer_type=layer_type)
    theta_field = "rope_theta" if layer_type == "full_attention" else "rope_local_base_freq"
    rope = rope_config(hf, HEAD_DIM, layer_type=layer_type, theta_field=theta_field)
    assert distance(cos_sin_table(rope, 1024), expected) < 1e-6


@pytest.fixture(scope="module")
def dynamic(tmp_path_factory: pytest.TempPathFactory) -> Golden:
    """Dynamic scaling of a model trained on 24 positions."""
    return short_model(tmp_path_factory, "dynamic", factor=4.0)


@pytest.fixture(scope="module")
def longrope(tmp_path_factory: pytest.TempPathFactory) -> Golden:
    return short_model(tmp_path_factory, "longrope", **LONGROPE)


def short_model(factory: pytest.TempPathFactory, kind: str, **settings: Any) -> Golden:
    rope = golden.rope(kind, **settings)
    if kind == "longrope":
        lengths = {"max_position_embeddings": 160, "original_max_position_embeddings": 24}
        config = golden.case("Phi3Config", **lengths, **rope)()
    else:
        config = golden.case("LlamaConfig", max_position_embeddings=24, **rope)()
    folder = factory.mktemp(kind)
    return Golden(kind, folder, golden.make(config, folder))


def test_dynamic_scaling_decodes_beyond_the_trained_length_as_transformers(
    dynamic: Golden,
) -> None:
    """transformers recomputes the base at every step; our row p is what step p gets."""
    ids = prompt(20)
    found = drive(load(dynamic.folder)).greedy(ids, steps=60)
    assert found == expected_greedy(dynamic.expected, ids, steps=60)


def test_dynamic_scaling_gives_a_long_prompt_the_rows_it_would_get_decoded(
    dynamic: Golden,
) -> None:
    """So the result does not depend on how a sequence was cut; one whole pass of transformers,
    which gives the last token's base to all, is another thing."""
    ids = prompt(60)
    model = load(dynamic.folder)
    (whole,) = drive(model).feed(ids)
    driver = drive(model)
    single = torch.cat([driver.feed([one])[0] for one in ids])
    assert distance(whole, single) < 1e-5
    assert distance(whole, expected_logits(dynamic.expected, ids)) > 1e-2


def test_longrope_within_the_trained_length_is_exact_when_nothing_longer_is_served(
    longrope: Golden,
) -> None:
    ids = prompt(24)
    (logits,) = drive(load(longrope.folder, max_model_len=24)).feed(ids)
    assert distance(logits, expected_logits(longrope.expected, ids)) < 1e-5


def test_longrope_beyond_the_trained_length_is_exact(longrope: Golden) -> None:
    ids = prompt(60)
    (logits,) = drive(load(longrope.folder, max_model_len=160)).feed(ids)
    # Every position of a long sequence, the early ones too, is rotated by the long factors.
    assert distance(logits, expected_logits(longrope.expected, ids)) < 1e-5


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        (None, 4096),
        ({"type": "dynamic", "factor": 2.0}, 8192),
        ({"type": "linear", "factor": 2.0}, 4096),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}, 16384),
        ({"type": "yarn", "factor": 40.0, "original_max_position_embeddings": 64}, 4096),
    ],
)
def test_the_longest_sequence_counts_what_scaling_adds(
    scaling: dict[str, Any] | None, expected: int
) -> None:
    hf = {"max_position_embeddings": 4096, "rope_scaling": scaling}
    assert longest_sequence(hf) == expected
