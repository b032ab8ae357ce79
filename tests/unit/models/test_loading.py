"""A checkpoint that does not fit is refused with names; one that fits streams through."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import pytest
import torch
from made_up import GEMMA3, LLAMA, context, dense

from allmetal.errors import CheckpointError
from allmetal.platform.specs import WeightFormat
from allmetal.runner.weights import dummy_readers
from allmetal_models.base import WeightReader
from allmetal_models.registry import build_model

TIED = {**LLAMA, "tie_word_embeddings": True}


def load(shapes: dict[str, tuple[int, ...]], hf: object = LLAMA) -> None:
    model = build_model(dict(hf), context())  # type: ignore[call-overload]
    model.load_weights(dummy_readers(shapes, dtype="float32"))


def shapes() -> dict[str, tuple[int, ...]]:
    return dict(build_model(LLAMA, context()).weight_shapes)


def test_a_model_says_what_it_needs() -> None:
    needed = shapes()
    assert len(needed) == 2 * 9 + 3
    assert needed["model.layers.1.self_attn.k_proj.weight"] == (32, 64)
    assert needed["lm_head.weight"] == (96, 64)
    load(needed)


def test_missing_tensors_are_counted_and_a_few_named() -> None:
    found = {name: shape for name, shape in shapes().items() if "mlp" not in name}
    with pytest.raises(CheckpointError) as caught:
        load(found)
    message = str(caught.value)
    assert "6 missing (model.layers.0.mlp.gate_proj.weight" in message
    assert "and 1 more" in message
    assert "hint: " in message


def test_unexpected_tensors_are_named() -> None:
    with pytest.raises(CheckpointError, match=r"1 unexpected \(model.layers.2.mlp.up_proj.weight"):
        load({**shapes(), "model.layers.2.mlp.up_proj.weight": (96, 64)})


def test_tensors_of_another_shape_are_named_with_both_shapes() -> None:
    name = "model.layers.0.self_attn.q_proj.weight"
    with pytest.raises(CheckpointError, match=r"q_proj.weight is \[32, 64\], expected \[64, 64\]"):
        load({**shapes(), name: (32, 64)})


def test_everything_that_is_wrong_is_said_at_once() -> None:
    found = {**shapes(), "extra.weight": (1,), "model.norm.weight": (3,)}
    del found["lm_head.weight"]
    with pytest.raises(CheckpointError, match=r"1 missing .* 1 unexpected .* 1 of another shape"):
        load(found)


def test_old_rotary_tables_and_a_tied_models_second_copy_are_passed_over() -> None:
    tied = shapes() | {"model.layers.0.self_attn.rotary_emb.inv_freq": (4,)}
    load(tied, TIED)
    del tied["lm_head.weight"]
    load(tied, TIED)
    with pytest.raises(CheckpointError, match=r"1 missing"):
        load(tied)


def test_a_merged_weight_is_packed_once_its_last_part_is_there() -> None:
    """Nothing read earlier stays: gate and up are released when the two are joined."""
    alive: dict[str, weakref.ref[torch.Tensor]] = {}

    class Watched:
        def __init__(self, reader: WeightReader) -> None:
            self._reader = reader
            self.name, self.shape, self.format = reader.name, reader.shape, reader.format

        def read(self, *part: object) -> torch.Tensor:
            raise AssertionError("dense weights are read as values")

        def dequantize(self, dtype: torch.dtype, *part: object) -> torch.Tensor:
            found = self._reader.dequantize(dtype, *part)  # type: ignore[arg-type]
            alive[self.name] = weakref.ref(found)
            return found

    model = build_model(LLAMA, context())
    gate, up = (f"model.layers.0.mlp.{name}_proj.weight" for name in ("gate", "up"))
    after: dict[str, list[bool]] = {}

    def readers() -> Iterator[tuple[str, WeightReader]]:
        for name, reader in dummy_readers(model.weight_shapes, dtype="float32"):
            yield name, Watched(reader)
            after[name] = [one in alive and alive[one]() is not None for one in (gate, up)]

    model.load_weights(readers())
    assert after[gate] == [True, False]
    assert after[up] == [False, False]


@pytest.mark.parametrize("body", ["model.language_model", "language_model.model"])
def test_the_language_model_is_found_beside_a_vision_tower(body: str) -> None:
    def only_there(name: str) -> WeightFormat:
        if not name.startswith(body):
            raise KeyError(name)
        return dense(name)

    hf = {"model_type": "gemma3", "text_config": GEMMA3}
    model = build_model(hf, context(weight_format=only_there))
    needed = dict(model.weight_shapes)
    assert all(name.startswith(body) for name in needed)
    beside = {
        "vision_tower.vision_model.post_layernorm.weight": (4,),
        "model.vision_tower.vision_model.post_layernorm.weight": (4,),
        "multi_modal_projector.mm_soft_emb_norm.weight": (4,),
    }
    model.load_weights(dummy_readers({**needed, **beside}, dtype="float32"))
