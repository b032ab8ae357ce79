"""The registry: every feature is documented, asked for by an option that exists, and what the core
promises on any device is what the reference kernels take."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

import pytest

from allmetal.config import EngineConfig
from allmetal.platform.capabilities import FEATURES, available, capability
from allmetal.platform.contract import (
    Emulated,
    Native,
    Spec,
    Supported,
    Unknown,
    Unsupported,
)
from allmetal.platform.features import REGISTRY, features_of
from allmetal.platform.policy import Policies, nameable
from allmetal.platform.reference import kernels
from allmetal.testing.conformance.problems import SPECS

ENGINES = {"async_scheduling", "prefix_caching"}
"""What the core does by itself, without a kernel."""


def test_every_feature_says_what_it_is_and_what_happens_without() -> None:
    options = {field.name for field in fields(EngineConfig)}
    for name, feature in REGISTRY.items():
        assert feature.doc, name
        assert feature.without, name
        assert feature.option in options | {""}, name
    assert list(FEATURES) == list(REGISTRY)


def lacking(spec: Spec, feature: str) -> list[str]:
    """Other features that a spec is about, and that nobody promises."""
    return [f for f in features_of(spec) if f != feature and REGISTRY[f].everywhere is None]


@pytest.mark.parametrize("feature", [f for f in REGISTRY if f not in ENGINES])
def test_what_is_promised_on_any_device_the_reference_does(feature: str) -> None:
    specs = [spec for spec in SPECS if feature in features_of(spec) and not lacking(spec, feature)]
    taken = [
        spec
        for spec in specs
        for kernel in kernels()[spec.family]
        if isinstance(kernel.supports(spec), Supported)
    ]
    promised = REGISTRY[feature].everywhere is not None
    assert promised == bool(taken)
    assert not promised or taken == specs, "some of them only"


def test_a_platforms_word_counts_and_silence_is_filled() -> None:
    table = {"quant.int8": Unsupported("no"), "mla": Native("x"), "lora": Unknown("who knows")}
    assert capability(table, "quant.int8") == Unsupported("no")
    assert capability(table, "mla") == Native("x")
    assert capability(table, "lora") == Unknown("who knows")
    assert capability(table, "sleep") == Unknown()
    assert isinstance(capability(table, "dtype.bfloat16"), Emulated)
    assert isinstance(capability({"dtype.bfloat16": Unknown()}, "dtype.bfloat16"), Emulated)
    assert available(capability({}, "prefix_caching"))
    assert capability({}, "flying") == Unknown()


def test_a_policy_may_be_named_for_a_feature_its_kind_its_option_or_kernels() -> None:
    names = nameable()
    assert {"quant", "quant.gguf", "quantization", "kernel", "kernel.attention", "mla"} <= set(
        names
    )
    assert len(set(names)) == len(names)
    assert Policies().of("kernel.attention") == "warn"
    assert Policies(named={"kernel": "error"}).of("kernel.attention") == "error"
    assert Policies(named={"*": "allow"}).of("kernel.attention") == "allow"
    assert Policies(named={"*": "allow"}).of("mla", explicit=True) == "error"
    assert Policies().of("mla") == "error"


@dataclass(frozen=True, slots=True)
class Stranger:
    family: ClassVar[str] = "divination"


def test_a_spec_of_another_family_is_about_nothing_registered() -> None:
    assert features_of(Stranger()) == ()
