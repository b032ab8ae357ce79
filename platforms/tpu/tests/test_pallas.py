"""What the Pallas kernels answer: nothing here needs JAX."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from allmetal.platform.contract import Native, Supported, Unsupported
from allmetal.platform.specs import (
    AttentionSpec,
    DenseWeight,
    Float8Weight,
    GGUFWeight,
    IntWeight,
    LinearSpec,
    MoESpec,
    Routing,
    WeightFormat,
)
from allmetal_tpu import pallas
from allmetal_tpu.pallas.chips import CHIPS
from allmetal_tpu.pallas.shapes import attention_shape, matmul_shape

ATTENTION = AttentionSpec(
    dtype="bfloat16",
    kv_dtype="bfloat16",
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    block_size=16,
    scale=0.1,
)
INSTALLED = "allmetal_tpu.pallas.bridge._is_installed"


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(INSTALLED, lambda package: True)


def answer(family: str, spec: object, chip: str = "v5e") -> Supported | Unsupported:
    (kernel,) = pallas.kernels(chip)[family]
    return kernel.supports(spec)


def refusal(family: str, spec: object) -> str:
    said = answer(family, spec)
    assert isinstance(said, Unsupported)
    return said.reason


def test_without_jax_all_is_refused_with_what_to_install_and_nothing_is_claimed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(INSTALLED, lambda package: package != "jax")

    assert 'jax is missing: pip install "allmetal-tpu[pallas]"' in refusal("attention", ATTENTION)
    assert {} == pallas.capabilities("v5e")


def test_offering_kernels_imports_no_jax() -> None:
    assert pallas.kernels("v5e")
    assert "allmetal_tpu.pallas.jit.attention" not in sys.modules


@pytest.mark.usefixtures("installed")
def test_a_generation_that_nothing_was_compiled_for_gets_no_kernels() -> None:
    assert {} == pallas.kernels("v4")
    assert {} == pallas.capabilities("v4")
    assert isinstance(pallas.capabilities("v7x")["moe"], Native)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"dtype": "float16", "kv_dtype": "float16"}, "float16"),
        ({"kv_dtype": "int8"}, "kv_dtype"),
        ({"head_dim": 512}, "head_dim"),
        ({"block_size": 24}, "page size must be a multiple of 16"),
        ({"kv_dtype": "float8_e4m3fn"}, "page size must be a multiple of 32"),
        ({"num_kv_heads": 5}, "do not divide"),
        ({"num_heads": 4096, "num_kv_heads": 2048}, "MiB"),
    ],
)
def test_attention_says_why_not(change: dict[str, object], word: str) -> None:
    assert word in refusal("attention", replace(ATTENTION, **change))  # type: ignore[arg-type]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("head_dim", [64, 80, 128, 192, 256])
@pytest.mark.parametrize("heads", [(32, 8), (28, 4), (8, 1), (32, 32)])
def test_usual_models_fit_every_generation(
    chip: str, head_dim: int, heads: tuple[int, int]
) -> None:
    spec = replace(ATTENTION, head_dim=head_dim, num_heads=heads[0], num_kv_heads=heads[1])

    assert isinstance(answer("attention", spec, chip), Supported)
    for single in (True, False):
        shape = attention_shape(spec, CHIPS[chip], num_tokens=2048, num_seqs=64, single=single)
        assert shape.vmem_bytes < CHIPS[chip].vmem_limit
        assert 0 == shape.rows % 16
        assert 0 == shape.width % 128
        assert shape.parts * shape.width >= 2 * head_dim


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("weight", "word"),
    [
        (DenseWeight(dtype="bfloat16"), "8 bits"),
        (GGUFWeight(type="Q4_K"), "8 bits"),
        (IntWeight(bits=4), "8 bits"),
        (IntWeight(group_size=16), "group_size"),
        (Float8Weight(block=(128, 128)), "block"),
        (Float8Weight(act_dtype="float8_e5m2"), "act_dtype"),
    ],
    ids=str,
)
def test_products_say_why_not(weight: WeightFormat, word: str) -> None:
    spec = LinearSpec(
        dtype="bfloat16", in_features=4096, out_features=512, bias=False, weight=weight
    )

    assert word in refusal("linear", spec)


@pytest.mark.usefixtures("installed")
def test_experts_are_dense_or_of_8_bits_with_a_scale_an_output() -> None:
    dense = DenseWeight(dtype="bfloat16")
    spec = MoESpec(
        dtype="bfloat16",
        num_experts=64,
        hidden_size=2880,
        intermediate_size=1536,
        activation="silu",
        routing=Routing(top_k=4),
        gate_up=dense,
        down=dense,
    )

    assert isinstance(answer("moe", spec), Supported)
    assert isinstance(
        answer("moe", replace(spec, gate_up=IntWeight(), down=IntWeight())), Supported
    )
    assert "both" in refusal("moe", replace(spec, down=IntWeight()))
    grouped = IntWeight(group_size=128)
    assert "one scale" in refusal("moe", replace(spec, gate_up=grouped, down=grouped))


@pytest.mark.parametrize(
    ("inner", "outputs"), [(128, 1), (2944, 1536), (11008, 4096), (4096, 152064)]
)
@pytest.mark.parametrize("group", [0, 32, 128])
def test_padding_is_small_and_tiles_are_whole(inner: int, outputs: int, group: int) -> None:
    for chip in CHIPS.values():
        shape = matmul_shape(
            inner, outputs, chip, num_rows=77, dtype="bfloat16", weight_dtype="int8", group=group
        )

        assert (0, 0) == (shape.packed[0] % shape.k, shape.packed[1] % shape.n)
        assert 0 == shape.k % (group or 1)
        assert shape.packed[0] < inner + max(512, inner // 8)
        assert shape.packed[1] < outputs + max(129, outputs // 8)
        assert shape.vmem_bytes < chip.vmem_limit
