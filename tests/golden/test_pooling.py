"""Vectors and labels of whole texts are those of transformers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import golden
import pytest
import torch
import transformers
from torch.nn import functional
from transformers import PreTrainedModel

from allmetal.checkpoint.folder import FolderCheckpoint
from allmetal.platform.batch import Batch
from allmetal.platform.reference import kernels
from allmetal.platform.select import Kernels
from allmetal.runner.weights import weight_format, weight_readers
from allmetal_models.base import Pools
from allmetal_models.context import BuildContext
from allmetal_models.layers.encoder import Encoder
from allmetal_models.pooling_config import Task, pooling_config, task_of
from allmetal_models.registry import build_model
from allmetal_models.testing import Driver

SIZES: Mapping[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 80,
}
TEXTS = [golden.prompt(length, seed) for seed, length in enumerate((1, 17, 60, 5))]
BERT, ROBERTA = transformers.BertConfig, transformers.XLMRobertaConfig
LABELS = {"id2label": {0: "a", 1: "b", 2: "c"}}


def made(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """With random weights everywhere, biases and norms too, saved."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            neutral = 1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0
            size = 0.3 if weight.dim() == 1 else 1.3 / weight.shape[-1] ** 0.5
            weight.copy_(neutral + size * noise)
    model.eval().save_pretrained(folder)
    return model


def ours(folder: Path, modules: Mapping[str, Any] | None = None, task: str = "auto") -> Any:
    """Our model, on the reference kernels, in float32."""
    checkpoint = FolderCheckpoint(folder)
    found: Task = task_of(checkpoint.config, modules or {}, task)
    ctx = BuildContext(
        kernels=Kernels(kernels()),
        dtype=torch.float32,
        device=torch.device("cpu"),
        kv_dtype="float32",
        block_size=golden.BLOCK_SIZE,
        weight_format=lambda name: weight_format(checkpoint.tensors[name]),
        quantization=None,
        max_model_len=80,
        pooling=pooling_config(checkpoint.config, modules or {}, found),
    )
    model = build_model(checkpoint.config, ctx)
    model.load_weights(weight_readers(checkpoint))
    assert isinstance(model, Pools)
    assert model.pooler is not None
    return model


def vectors(
    model: Any, texts: Sequence[Sequence[int]], types: list[int] | None = None
) -> torch.Tensor:
    """Of all texts in one batch."""
    lens = [len(text) for text in texts]
    starts = torch.tensor([0, *lens]).cumsum(0)
    if isinstance(model, Encoder):
        batch = Batch(
            token_ids=torch.tensor([token for text in texts for token in text]),
            positions=torch.cat([torch.arange(length) for length in lens]),
            groups=(),
            query_start=starts.to(torch.int32),
            host_query_lens=lens,
            token_types=None if types is None else torch.tensor(types),
        )
        hidden = model.forward(batch)
    else:
        driver = Driver(
            model,
            block_size=golden.BLOCK_SIZE,
            device=torch.device("cpu"),
            num_sequences=len(texts),
        )
        hidden = torch.cat(driver.hidden(*map(list, texts)))
    out: torch.Tensor = model.pooler(hidden, starts)
    assert out.dtype == torch.float32
    return out


@torch.no_grad()
def hidden_states(model: PreTrainedModel, text: Sequence[int]) -> torch.Tensor:
    states: torch.Tensor = model(torch.tensor([list(text)])).last_hidden_state[0]
    return states


@pytest.mark.parametrize("kind", ["mean", "cls"])
@pytest.mark.parametrize("config", [BERT, ROBERTA])
def test_an_encoder_gives_transformers_vectors(config: Any, kind: str, tmp_path: Path) -> None:
    expected = made(transformers.AutoModel.from_config(config(**SIZES)), tmp_path)
    mode = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}[kind]
    found = vectors(ours(tmp_path, {"Pooling": {mode: True}}), TEXTS)
    for text, vector in zip(TEXTS, found, strict=True):
        states = hidden_states(expected, text)
        pooled = states.mean(0) if kind == "mean" else states[0]
        assert golden.distance(vector, pooled) < 1e-5


@pytest.mark.parametrize("config", [BERT, ROBERTA])
def test_a_classifying_encoder_gives_transformers_scores_of_pairs(
    config: Any, tmp_path: Path
) -> None:
    settings = {**SIZES, **LABELS, **({} if config is BERT else {"type_vocab_size": 2})}
    model = transformers.AutoModelForSequenceClassification.from_config(config(**settings))
    expected = made(model, tmp_path)
    types = [[0] * (len(text) // 2) + [1] * (len(text) - len(text) // 2) for text in TEXTS]
    found = vectors(ours(tmp_path), TEXTS, [kind for each in types for kind in each])
    for text, kinds, scores in zip(TEXTS, types, found, strict=True):
        with torch.no_grad():
            given = {"token_type_ids": torch.tensor([kinds])}
            logits = expected(torch.tensor([text]), **given).logits[0]
        assert golden.distance(scores, logits) < 1e-5


def test_a_classifying_decoder_gives_transformers_scores(tmp_path: Path) -> None:
    config = golden.case("Qwen3Config", head_dim=16, **LABELS)()
    model = transformers.AutoModelForSequenceClassification.from_config(config)
    expected = made(model, tmp_path)
    for text, scores in zip(TEXTS, vectors(ours(tmp_path), TEXTS), strict=True):
        with torch.no_grad():
            logits = expected(torch.tensor([text])).logits[0]
        assert golden.distance(scores, logits) < 1e-5


@pytest.mark.parametrize("alone", [True, False])
def test_an_embedding_decoder_gives_the_last_tokens_state(alone: bool, tmp_path: Path) -> None:
    """Whether its body was saved alone, as Qwen3-Embedding's is, or with a head."""
    config = golden.case("Qwen3Config", head_dim=16)()
    make: Callable[..., PreTrainedModel] = (
        transformers.AutoModel.from_config
        if alone
        else transformers.AutoModelForCausalLM.from_config
    )
    expected = made(make(config), tmp_path)
    body = expected if alone else expected.model
    modules = {"Pooling": {"pooling_mode_lasttoken": True}, "Normalize": {}}
    for text, vector in zip(TEXTS, vectors(ours(tmp_path, modules), TEXTS), strict=True):
        last = hidden_states(body, text)[-1]
        assert golden.distance(vector, functional.normalize(last, dim=0)) < 1e-5


def test_what_a_checkpoint_is_for_is_read_off_it_and_can_be_asked_for() -> None:
    bert = json.loads(BERT(**SIZES, architectures=["BertModel"]).to_json_string())
    llama = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    assert task_of(bert, {}) == "embed"
    assert task_of({**bert, "architectures": ["BertForSequenceClassification"]}, {}) == "classify"
    assert task_of(llama, {}) == "generate"
    assert task_of(llama, {"Pooling": {}}) == "embed"
    assert task_of(llama, {}, "embed") == "embed"
