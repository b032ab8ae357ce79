"""Tiny models of transformers through `LLM`, on the emulated device: in float32, where attention is
let take what no chip does, every token is the one that transformers chooses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from machine import EmulatedAscend
from standin_cann.emulator import Emulator, emulated

import allmetal_ascend
from allmetal import LLM, SamplingParams

VOCAB, NUM_TOKENS = 200, 10
pytestmark = pytest.mark.timeout(400)
SIZES: Mapping[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 96,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
KINDS: Mapping[str, Any] = {
    "llama": transformers.LlamaConfig(**SIZES, head_dim=32),
    "llama-128": transformers.LlamaConfig(**SIZES, head_dim=128),
    "mistral": transformers.MistralConfig(**SIZES, head_dim=32, sliding_window=40),
    "mistral-128": transformers.MistralConfig(**SIZES, head_dim=128, sliding_window=40),
    "qwen3": transformers.Qwen3Config(**SIZES, head_dim=32),
    "qwen3_moe": transformers.Qwen3MoeConfig(
        **SIZES,
        head_dim=32,
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=48,
        norm_topk_prob=True,
        decoder_sparse_step=1,
    ),
}
LENGTHS = (5, 150, 33, 128, 61)
OPERATORS = {
    "npu_rms_norm",
    "npu_add_rms_norm",
    "npu_rotary_mul",
    "npu_scatter_pa_kv_cache",
    "npu_fused_infer_attention_score",
}


def prompt(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    ids: list[int] = torch.randint(3, VOCAB, (length,), generator=generator).tolist()
    return ids


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@cache
def model_of(kind: str, folder: Path) -> tuple[Path, list[list[int]]]:
    """A checkpoint, and the tokens that transformers adds to each prompt."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(KINDS[kind]).float().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:  # as large as trained ones act, so that a wrong layer shows
                weight.mul_(0.4 / weight.std() if "embed" in name else 3.0)
    model.save_pretrained(folder / kind)
    words = {f"w{n}": n for n in range(VOCAB)}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0")).save(
        str(folder / kind / "tokenizer.json")
    )
    expected = []
    for length in LENGTHS:
        ids = torch.tensor([prompt(length)])
        with torch.no_grad():
            made = model.generate(
                ids, max_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0
            )
        expected.append(made[0, length:].tolist())
    return folder / kind, expected


@pytest.fixture(params=[True], ids=["float32"])
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    """What the platform's entry point gives is the emulated one."""
    monkeypatch.setattr(allmetal_ascend, "AscendPlatform", lambda: EmulatedAscend(float32=True))
    with emulated(strict=False) as emulator:
        yield emulator


def generate(folder: Path, **options: Any) -> tuple[list[list[int]], Any]:
    sampling = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    settings = {
        "platform": "ascend",
        "dtype": "float32",
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "kv_cache_memory": 16 << 20,
        "graph_capture": False,
        **options,
    }
    with LLM(str(folder), **settings) as llm:
        outputs = llm.generate([prompt(length) for length in LENGTHS], sampling)
        plan = llm.engine.plan
    return [list(output.outputs[0].token_ids) for output in outputs], plan


@pytest.mark.parametrize("kind", KINDS)
def test_every_token_is_what_transformers_chooses(
    device: Emulator, kind: str, checkpoints: Path
) -> None:
    folder, expected = model_of(kind, checkpoints)

    tokens, _ = generate(folder)

    assert expected == tokens
    assert device.counts.calls.keys() >= OPERATORS
    if kind == "qwen3_moe":
        assert device.counts.calls["npu_grouped_matmul"] > 0


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_recorded_steps_are_told_lengths_at_every_replay_and_change_no_token(
    device: Emulator, kind: str, checkpoints: Path
) -> None:
    folder, expected = model_of(kind, checkpoints)

    tokens, _ = generate(folder, graph_capture=True)

    assert expected == tokens
    assert device.counts.runs > 0
    layers = SIZES["num_hidden_layers"]
    assert layers * device.counts.runs >= device.counts.updates > 0


def test_half_precision_runs_on_the_operators_as_they_are_documented(
    monkeypatch: pytest.MonkeyPatch, checkpoints: Path
) -> None:
    """Nothing is let pass that the documents refuse."""
    folder, _ = model_of("qwen3_moe", checkpoints)
    monkeypatch.setattr(allmetal_ascend, "AscendPlatform", EmulatedAscend)

    with emulated() as device:
        tokens, plan = generate(folder, dtype="bfloat16", graph_capture=True)

    assert [NUM_TOKENS] * len(LENGTHS) == [len(each) for each in tokens]
    kernels = {d.feature: d.got for d in plan.decisions if d.feature.startswith("kernel.")}
    assert {"npu_attention", "npu_moe"} <= set(kernels.values())
    assert device.counts.calls.keys() >= OPERATORS | {
        "npu_moe_gating_top_k",
        "npu_moe_init_routing_v2",
        "npu_grouped_matmul",
        "npu_moe_token_unpermute",
    }


def test_weights_and_activations_in_8_bits_are_multiplied_as_integers(
    monkeypatch: pytest.MonkeyPatch, checkpoints: Path
) -> None:
    folder, _ = model_of("llama", checkpoints)
    monkeypatch.setattr(allmetal_ascend, "AscendPlatform", EmulatedAscend)

    with emulated() as device:
        tokens, _ = generate(folder, dtype="bfloat16", quantization="w8a8")

    assert [NUM_TOKENS] * len(LENGTHS) == [len(each) for each in tokens]
    calls = device.counts.calls
    assert 0 < calls["npu_dynamic_quant"] == calls["npu_quant_matmul"]
