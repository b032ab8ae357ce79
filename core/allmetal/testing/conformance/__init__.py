"""The conformance kit: what a platform claims, held against the reference.

    from allmetal.testing.conformance import PlatformConformance

    class TestMetal(PlatformConformance):
        @pytest.fixture
        def platform(self) -> Platform:
            return MetalPlatform()

Without its hardware a platform's tests are skipped with the probe's reason.  A test may be
overridden only under `pytest.mark.xfail(reason=...)`.
"""

from __future__ import annotations

import pytest

_PARTS = (
    "attention",
    "attention_input",
    "base",
    "contract",
    "decode_state",
    "devices",
    "draws",
    "elementwise",
    "encoder_attention",
    "engines",
    "linear",
    "model",
    "moe",
    "paged",
    "sampling",
    "services",
)
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in _PARTS))

from allmetal.testing.conformance.attention import AttentionConformance  # noqa: E402
from allmetal.testing.conformance.attention_input import (  # noqa: E402
    AttentionInputConformance,
)
from allmetal.testing.conformance.base import TOLERANCE, Bench, Conformance  # noqa: E402
from allmetal.testing.conformance.contract import ContractConformance  # noqa: E402
from allmetal.testing.conformance.decode_state import DecodeStateConformance  # noqa: E402
from allmetal.testing.conformance.devices import DevicesConformance  # noqa: E402
from allmetal.testing.conformance.elementwise import ElementwiseConformance  # noqa: E402
from allmetal.testing.conformance.encoder_attention import (  # noqa: E402
    EncoderAttentionConformance,
)
from allmetal.testing.conformance.linear import LinearConformance  # noqa: E402
from allmetal.testing.conformance.model import ModelConformance  # noqa: E402
from allmetal.testing.conformance.moe import MoEConformance  # noqa: E402
from allmetal.testing.conformance.sampling import SamplingConformance  # noqa: E402
from allmetal.testing.conformance.services import ServicesConformance  # noqa: E402


class PlatformConformance(
    ContractConformance,
    AttentionConformance,
    AttentionInputConformance,
    DecodeStateConformance,
    ElementwiseConformance,
    EncoderAttentionConformance,
    LinearConformance,
    MoEConformance,
    SamplingConformance,
    ServicesConformance,
    ModelConformance,
    DevicesConformance,
):
    """All of it.  Subclass, override the fixture `platform`, run pytest."""


__all__ = ["TOLERANCE", "Bench", "Conformance", "PlatformConformance"]
