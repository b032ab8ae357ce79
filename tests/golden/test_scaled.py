"""Checkpoints of 8-bit values and scales compute what transformers computes with their products."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import golden
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from allmetal.checkpoint.folder import FolderCheckpoint
from allmetal.errors import CheckpointError, ModelError
from allmetal.platform.contract import AnyKernel, Support, Supported, Unsupported
from allmetal.platform.reference import kernels
from allmetal.platform.select import Kernels
from allmetal.platform.specs import Float8Weight, IntWeight, LinearOp, LinearSpec, MoESpec
from allmetal.runner.weights import weight_format
from allmetal_models.facts import facts

FLOAT = torch.float8_e4m3fn
TOLERANCE = 1e-5
LINEAR = re.compile(r"\.(\w+_proj|w[123])\.weight$")
Quantise = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
"""weight [N, C] -> stored values, stored scales, and their products."""


def by_block(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> Quantise:
    def quantise(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        n, c = (-(-size // of) for size, of in zip(weight.shape, (rows, columns), strict=True))
        values, scales = torch.zeros_like(weight, dtype=FLOAT), torch.zeros(n, c, dtype=dtype)
        product = torch.zeros_like(weight)
        for i in range(n):
            for j in range(c):
                part = slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns)
                scales[i, j] = weight[part].abs().max() / 448
                scale = scales[i, j].float()
                values[part] = (weight[part] / scale).clamp(-448, 448).to(FLOAT)
                product[part] = values[part].float() * scale
        return values, scales, product

    return quantise


def by_row(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scale = weight.abs().amax(1, keepdim=True) / 448
    values = (weight / scale).clamp(-448, 448).to(FLOAT)
    return values, scale, values.float() * scale


def as_a_whole(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scale = weight.abs().max() / 448
    values = (weight / scale).clamp(-448, 448).to(FLOAT)
    return values, scale, values.float() * scale


def integers(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scale = (weight.abs().amax(1, keepdim=True) / 127).to(torch.bfloat16)
    values = (weight / scale.float()).round().clamp(-127, 127).to(torch.int8)
    return values, scale, values.float() * scale.float()


def compressed(kind: str, strategy: str, activations: bool = True, **more: Any) -> dict[str, Any]:
    weights = {"num_bits": 8, "type": kind, "strategy": strategy, "symmetric": True, **more}
    inputs = {"num_bits": 8, "type": kind, "strategy": "token", "dynamic": True}
    group = {"weights": weights, "input_activations": inputs if activations else None}
    return {
        "quant_method": "compressed-tensors",
        "format": f"{kind}-quantized",
        "config_groups": {"group_0": {**group, "targets": ["Linear"]}},
        "ignore": ["lm_head"],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    family: str
    quantise: Quantise
    ending: str
    config: Mapping[str, Any]
    held: Float8Weight | IntWeight
    extra: str = ""


def fine(*block: int) -> dict[str, Any]:
    return {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": list(block),
    }


E4M3 = "float8_e4m3fn"
CASES = {
    "fp8-blocks": Case(
        family="qwen3",
        quantise=by_block(16, 24, torch.bfloat16),
        ending="_scale_inv",
        config=fine(16, 24),
        held=Float8Weight(act_dtype=E4M3, block=(16, 24)),
    ),
    "fp8-blocks-with-ragged-ends": Case(
        family="llama-biases",
        quantise=by_block(20, 32),
        ending="_scale_inv",
        config=fine(20, 32),
        held=Float8Weight(act_dtype=E4M3, block=(20, 32)),
    ),
    "fp8-blocks-of-experts": Case(
        family="qwen3_moe",
        quantise=by_block(16, 16),
        ending="_scale_inv",
        config=fine(16, 16),
        held=Float8Weight(act_dtype=E4M3, block=(16, 16)),
    ),
    "fp8-tensors": Case(
        family="phi3",
        quantise=as_a_whole,
        ending="_scale_inv",
        config={"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None},
        held=Float8Weight(act_dtype=E4M3),
        extra="input_scale",
    ),
    "compressed-channels": Case(
        family="mistral",
        quantise=by_row,
        ending="_scale",
        config=compressed("float", "channel"),
        held=Float8Weight(act_dtype=E4M3),
    ),
    "compressed-experts-weights-only": Case(
        family="mixtral",
        quantise=by_row,
        ending="_scale",
        config=compressed("float", "channel", activations=False),
        held=Float8Weight(),
    ),
    "compressed-integers": Case(
        family="llama",
        quantise=integers,
        ending="_scale",
        config=compressed("int", "channel"),
        held=IntWeight(act_dtype="int8"),
    ),
    "compressed-integers-weights-only": Case(
        family="gemma2",
        quantise=integers,
        ending="_scale",
        config=compressed("int", "channel", activations=False),
        held=IntWeight(),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    case: Case
    folder: Path
    expected: torch.Tensor  # transformers' logits with the products


@pytest.fixture(scope="module", params=CASES)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    case = CASES[request.param]
    folder = tmp_path_factory.mktemp("scaled")
    model = golden.make(golden.CASES[case.family](), folder)
    stored = load_file(folder / "model.safetensors")
    products = dict(stored)
    for name, weight in list(stored.items()):
        if not LINEAR.search(name):
            continue
        values, scales, products[name] = case.quantise(weight)
        stored |= {name: values, name + case.ending: scales}
        if case.extra:
            stored[name.replace("weight", case.extra)] = torch.tensor(0.1)
    save_file(products, folder / "model.safetensors", {"format": "pt"})
    with_products = type(model).from_pretrained(folder, attn_implementation="eager")
    expected = golden.expected_logits(with_products, golden.prompt(30))
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": case.config}))
    return Saved(case=case, folder=folder, expected=expected)


class Fast:
    """The reference's, under a rank of its own, so that weights are held as they are stored."""

    name = "fast"

    def __init__(self, family: str) -> None:
        self._kernel: AnyKernel = kernels()[family][0]
        self.seen: set[object] = set()

    def supports(self, spec: LinearSpec | MoESpec) -> Support:
        weight = spec.weight if isinstance(spec, LinearSpec) else spec.down
        if not isinstance(weight, Float8Weight | IntWeight):
            return Unsupported("takes 8-bit weights")
        return Supported()

    def build(self, spec: LinearSpec | MoESpec) -> LinearOp:
        self.seen.add(spec.weight if isinstance(spec, LinearSpec) else spec.down)
        op: LinearOp = self._kernel.build(spec)
        return op


def test_expanded_while_loading(saved: Saved) -> None:
    (logits,) = golden.drive(golden.load(saved.folder)).feed(golden.prompt(30))
    assert golden.distance(logits, saved.expected) < TOLERANCE


def test_held_as_stored(saved: Saved) -> None:
    """Where activations are rounded too the result is near; the kit holds the kernels."""
    fast = {family: Fast(family) for family in ("linear", "moe")}
    offered = {**kernels(), **{name: (one, *kernels()[name]) for name, one in fast.items()}}
    model = golden.load(saved.folder, kernels=Kernels(offered))
    (logits,) = golden.drive(model).feed(golden.prompt(30))
    held = saved.case.held
    assert fast["linear"].seen == {held}
    if "experts" in saved.case.family or saved.case.family == "mixtral":
        assert fast["moe"].seen == {held}
    assert golden.distance(logits, saved.expected) < (0.2 if held.act_dtype else TOLERANCE)


def test_the_plan_is_told(saved: Saved) -> None:
    checkpoint = FolderCheckpoint(saved.folder)
    kind = facts(checkpoint.config, checkpoint.tensors).quantization
    formats = {weight_format(info) for info in checkpoint.tensors.values() if info.scales}
    checkpoint.close()
    assert formats == {saved.case.held}
    rounded = saved.case.held.act_dtype is not None
    expected = "fp8" if isinstance(saved.case.held, Float8Weight) else "w8a8" if rounded else "int8"
    assert kind == expected


def test_transformers_reads_the_same_from_blocks(tmp_path: Path) -> None:
    """The convention itself: its own loader, which expands where it has no GPU."""
    model = golden.make(golden.CASES["qwen3"](), tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    for name, weight in list(stored.items()):
        if LINEAR.search(name):
            values, scales, _ = by_block(8, 24)(weight)
            stored |= {name: values, f"{name}_scale_inv": scales}
    save_file(stored, tmp_path / "model.safetensors", {"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps({**config, "quantization_config": fine(8, 24)})
    )
    theirs = type(model).from_pretrained(
        tmp_path,
        attn_implementation="eager",
        dtype=torch.float32,
        quantization_config=transformers.FineGrainedFP8Config(
            weight_block_size=(8, 24), dequantize=True
        ),
    )
    expected = golden.expected_logits(theirs.float(), golden.prompt(30))
    (logits,) = golden.drive(golden.load(tmp_path)).feed(golden.prompt(30))
    assert golden.distance(logits, expected) < TOLERANCE


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"quant_method": "awq"}, "quantised by 'awq', which is not read"),
        (
            {**compressed("float", "channel"), "format": "pack-quantized"},
            "in the format 'pack-quantized'",
        ),
        (compressed("int", "channel", num_bits=4), "weights of 4 bits"),
        (compressed("int", "channel", symmetric=False), "not symmetric"),
        (compressed("float", "group"), "a scale for each group"),
        ({**compressed("float", "channel"), "config_groups": {}}, "weights of 0 schemes"),
        (
            {**compressed("float", "tensor"), "sparsity_config": {"format": "sparse-24-bitmask"}},
            "sparse-24-bitmask",
        ),
        (fine(128), "two sizes"),
    ],
)
def test_schemes_that_are_not_read_are_named(said: dict[str, Any], why: str) -> None:
    with pytest.raises(ModelError, match=why):
        facts({"model_type": "llama", "quantization_config": said}, {})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("missing", r"there is no .*q_proj\.weight_scale"),
        ("short", r"is \[2, 2\], expected \[3, 2\]"),
    ],
)
def test_scales_that_do_not_fit_are_named(tmp_path: Path, change: str, why: str) -> None:
    values, scales, _ = by_block(16, 24)(torch.randn(48, 48))
    name = "model.layers.0.self_attn.q_proj.weight"
    tensors = {name: values, f"{name}_scale_inv": scales[:2].contiguous()}
    if change == "missing":
        del tensors[f"{name}_scale_inv"]
    save_file(tensors, tmp_path / "model.safetensors")
    config = {"model_type": "qwen3", "quantization_config": fine(16, 24)}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=why):
        FolderCheckpoint(tmp_path)
