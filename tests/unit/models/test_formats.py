"""A weight is held as it is stored where a kernel computes with that, and dense where none does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType, quants
from made_up import LLAMA, PHI3, context, scaled

from allmetal.errors import CheckpointError
from allmetal.platform.contract import AnyKernel, Support, Supported, Unsupported
from allmetal.platform.reference import kernels
from allmetal.platform.select import Kernels
from allmetal.platform.specs import (
    DenseWeight,
    Float8Weight,
    GGUFWeight,
    IntWeight,
    LinearOp,
    LinearSpec,
    WeightFormat,
)
from allmetal.quant.float8 import dequantize as from_float8
from allmetal.quant.float8 import quantize as to_float8
from allmetal.quant.gguf import dequantize
from allmetal.quant.int8 import dequantize as from_int8
from allmetal.quant.int8 import quantize as to_int8
from allmetal.runner.weights import dummy_readers
from allmetal_models.base import CausalLM, WeightReader
from allmetal_models.registry import build_model
from allmetal_models.testing import Driver

IDS = [5, 17, 80, 3, 44, 61, 95, 0, 12, 33, 7]
TIED = {**LLAMA, "tie_word_embeddings": True}


class Fast:
    """The reference's linear kernel, under a name and rank of its own, for some formats."""

    name = "fast"

    def __init__(self, *types: str) -> None:
        self._types = types
        self._kernel: AnyKernel = kernels()["linear"][0]

    def supports(self, spec: LinearSpec) -> Support:
        weight = spec.weight
        if isinstance(weight, GGUFWeight) and weight.type not in self._types:
            return Unsupported(f"multiplies {', '.join(self._types)}, not {weight.type}")
        return Supported()

    def build(self, spec: LinearSpec) -> LinearOp:
        op: LinearOp = self._kernel.build(spec)
        return op


class Blocks:
    """A reader of GGML blocks made of a dense one."""

    def __init__(self, dense: WeightReader, kind: str) -> None:
        self.name, self.shape = dense.name, dense.shape
        self.format: WeightFormat = GGUFWeight(type=kind)
        self._kind = kind
        values = dense.read().numpy()
        self.raw = torch.from_numpy(quants.quantize(values, GGMLQuantizationType[kind]))

    def read(
        self, dim: int | None = None, start: int = 0, length: int | None = None
    ) -> torch.Tensor:
        assert dim in (None, 0)
        return self.raw if dim is None else self.raw.narrow(0, start, length or 0)

    def dequantize(
        self,
        dtype: torch.dtype,
        dim: int | None = None,
        start: int = 0,
        length: int | None = None,
    ) -> torch.Tensor:
        values = dequantize(self.raw, self._kind, dtype)
        return values if dim is None else values.narrow(dim, start, length or 0)


class Dense(Blocks):
    """Reads like a dense tensor with the values that `Blocks` holds."""

    def __init__(self, dense: WeightReader, kind: str) -> None:
        super().__init__(dense, kind)
        self.format = DenseWeight(dtype="float32")

    def read(self, *part: Any) -> torch.Tensor:
        return self.dequantize(torch.float32, *part)


def kind_of(name: str) -> str:
    """As files mix them: values and the MLP's second half finer than the rest."""
    fine = ("v_proj.weight", "up_proj.weight", "embed_tokens.weight", "lm_head.weight")
    return "Q8_0" if name.endswith(fine) else "Q4_0"


def readers(
    shapes: Mapping[str, tuple[int, ...]], reader: type[Blocks]
) -> Iterator[tuple[str, WeightReader]]:
    for name, dense in scaled(dummy_readers(shapes, dtype="float32")):
        yield name, dense if len(dense.shape) == 1 else reader(dense, kind_of(name))


def stored(name: str) -> WeightFormat:
    return GGUFWeight(type=kind_of(name))


def logits(model: CausalLM) -> torch.Tensor:
    return Driver(model, block_size=4, device=torch.device("cpu")).feed(IDS)[0]


def model_of(hf: Mapping[str, Any], reader: type[Blocks], offered: Kernels) -> CausalLM:
    formats = {} if issubclass(reader, Dense) else {"weight_format": stored}
    model = build_model(hf, context(offered=offered, **formats))
    model.load_weights(readers(model.weight_shapes, reader))
    return model


def offered(*fast: str) -> Kernels:
    return Kernels(
        {**kernels(), "linear": [*([Fast(*fast)] if fast else []), *kernels()["linear"]]}
    )


def bound(offered: Kernels) -> set[tuple[str, int, int]]:
    """(format, in, out) of every product that would be computed by the kernel `fast`."""
    found = set()
    for choice in offered.choices:
        spec = choice.spec
        if isinstance(spec, LinearSpec) and choice.kernel.name == "fast":
            weight = spec.weight
            kind = weight.type if isinstance(weight, GGUFWeight) else weight.kind
            found.add((kind, spec.in_features, spec.out_features))
    return found


@pytest.mark.parametrize("hf", [LLAMA, TIED, PHI3], ids=["llama", "tied", "phi3"])
@pytest.mark.parametrize("fast", [(), ("Q4_0",), ("Q8_0",), ("Q4_0", "Q8_0")])
def test_the_result_is_that_of_the_expanded_weights(
    hf: Mapping[str, Any], fast: tuple[str, ...]
) -> None:
    expected = logits(model_of(hf, Dense, offered()))
    assert expected.std() > 0.1
    found = logits(model_of(hf, Blocks, offered(*fast)))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_neighbours_of_one_format_are_multiplied_in_one_go() -> None:
    kernels = offered("Q4_0", "Q8_0")
    model_of(LLAMA, Blocks, kernels)
    assert bound(kernels) == {
        ("Q4_0", 64, 64 + 32),  # q and k
        ("Q8_0", 64, 32),  # v
        ("Q4_0", 64, 64),  # o
        ("Q4_0", 64, 96),  # gate
        ("Q8_0", 64, 96),  # up, and the head
        ("Q4_0", 96, 64),  # down
    }


def test_formats_without_a_kernel_join_the_dense_ones() -> None:
    kernels = offered("none of these")
    model_of(LLAMA, Blocks, kernels)
    assert bound(kernels) == {
        ("dense", 64, 64 + 32 + 32),
        ("dense", 64, 64),
        ("dense", 64, 96 + 96),
        ("dense", 96, 64),
        ("dense", 64, 96),
    }


def test_a_named_kernel_that_takes_dense_weights_only_gets_them() -> None:
    class DenseOnly(Fast):
        def supports(self, spec: LinearSpec) -> Support:
            if isinstance(spec.weight, DenseWeight):
                return Supported(rank=2000)
            return Unsupported(f"multiplies dense weights, not {spec.weight.kind}")

    named = Kernels(
        {**kernels(), "linear": [DenseOnly(), *kernels()["linear"]]}, explicit={"linear": "fast"}
    )
    assert logits(model_of(LLAMA, Blocks, named)).isfinite().all()
    assert {kind for kind, _, _ in bound(named)} == {"dense"}


def test_a_format_other_than_the_announced_one_is_refused() -> None:
    kernels = offered("Q4_0", "Q8_0")
    model = build_model(LLAMA, context(offered=kernels, weight_format=stored))
    with pytest.raises(CheckpointError, match=r"embed_tokens.weight is DenseWeight"):
        model.load_weights(readers(model.weight_shapes, Dense))


class Rounded(Dense):
    """Dense values that int8 holds."""

    def __init__(self, dense: WeightReader, kind: str) -> None:
        super().__init__(dense, kind)
        packed = to_int8(dense.read())
        self._values = from_int8(packed["weight"], packed["scale"], torch.float32)
        if "embed_tokens" in dense.name:  # Looked up, not multiplied.
            self._values = dense.read()

    def dequantize(
        self,
        dtype: torch.dtype,
        dim: int | None = None,
        start: int = 0,
        length: int | None = None,
    ) -> torch.Tensor:
        values = self._values.to(dtype)
        return values if dim is None else values.narrow(dim, start, length or 0)


@pytest.mark.parametrize("hf", [LLAMA, PHI3], ids=["llama", "phi3"])
def test_dense_weights_become_int8_while_they_load(hf: Mapping[str, Any]) -> None:
    expected = logits(model_of(hf, Rounded, offered()))
    kernels = offered()
    model = build_model(hf, context(offered=kernels, quantization="int8"))
    model.load_weights(scaled(dummy_readers(model.weight_shapes, dtype="float32")))
    torch.testing.assert_close(logits(model), expected, rtol=1e-4, atol=1e-4)
    specs = [choice.spec for choice in kernels.choices if isinstance(choice.spec, LinearSpec)]
    assert {spec.weight for spec in specs} == {IntWeight(bits=8, group_size=0)}


def test_activations_become_int8_too_where_that_is_asked_for() -> None:
    expected = logits(model_of(LLAMA, Rounded, offered()))
    kernels = offered()
    model = build_model(LLAMA, context(offered=kernels, quantization="w8a8"))
    model.load_weights(scaled(dummy_readers(model.weight_shapes, dtype="float32")))
    difference = (logits(model) - expected).norm() / expected.norm()
    assert 1e-4 < difference < 0.05
    specs = [choice.spec for choice in kernels.choices if isinstance(choice.spec, LinearSpec)]
    assert {spec.weight for spec in specs} == {IntWeight(act_dtype="int8")}


class RoundedToFloat8(Rounded):
    """Dense values that 8-bit floating point holds."""

    def __init__(self, dense: WeightReader, kind: str) -> None:
        super().__init__(dense, kind)
        if "embed_tokens" not in dense.name:
            packed = to_float8(dense.read())
            self._values = from_float8(packed["weight"], packed["scale"], torch.float32)


def test_dense_weights_become_float8_while_they_load() -> None:
    expected = logits(model_of(LLAMA, RoundedToFloat8, offered()))
    kernels = offered()
    model = build_model(LLAMA, context(offered=kernels, quantization="fp8"))
    model.load_weights(scaled(dummy_readers(model.weight_shapes, dtype="float32")))
    # Activations are rounded too, to 3 bits of fraction.
    difference = (logits(model) - expected).norm() / expected.norm()
    assert 1e-4 < difference < 0.1
    specs = [choice.spec for choice in kernels.choices if isinstance(choice.spec, LinearSpec)]
    assert {spec.weight for spec in specs} == {Float8Weight(act_dtype="float8_e4m3fn")}
