"""The features a platform is asked about, and how a capability is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from allmetal.platform.contract import (
    Capability,
    CapabilityTable,
    Emulated,
    Native,
    Unknown,
    Unsupported,
)
from allmetal.platform.features import REGISTRY

FEATURES: Mapping[str, str] = {name: feature.doc for name, feature in REGISTRY.items()}


def capability(table: CapabilityTable, feature: str) -> Capability:
    """The platform's word; where it is silent, what the core does on any device."""
    answer = table.get(feature, Unknown())
    known = REGISTRY.get(feature)
    if isinstance(answer, Unknown) and known is not None and known.everywhere is not None:
        return known.everywhere
    return answer


def available(answer: Capability) -> bool:
    return isinstance(answer, Native | Emulated)


def describe(answer: Capability) -> str:
    """One line for people."""
    match answer:
        case Native(by=by):
            return f"native: {by}"
        case Emulated(how=how):
            return f"emulated: {how}"
        case Unsupported(reason=reason) | Unknown(reason=reason):
            return reason
        case other:
            assert_never(other)
