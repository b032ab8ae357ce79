"""Rotary embedding settings as published configs write them.  No torch here.

Two spellings are read: `rope_theta` with `rope_scaling`, and `rope_parameters`, which may hold
one set for each kind of layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from allmetal.errors import CheckpointError, ModelError
from allmetal_models.config import HFConfig, count

ROPE_KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """`max_positions` is the config's; `original_positions` what the model was first trained on.

    `settings` holds what only one kind of scaling has.
    """

    kind: str
    theta: float
    rotary_dim: int
    max_positions: int
    original_positions: int
    settings: Mapping[str, Any] = field(default_factory=dict)

    def number(self, name: str) -> float:
        """A setting this kind cannot do without.  CheckpointError if it is missing."""
        value = self.settings.get(name)
        if not isinstance(value, int | float):
            raise CheckpointError(f"rope scaling of kind {self.kind!r} needs a number {name!r}")
        return float(value)

    def numbers(self, name: str) -> tuple[float, ...]:
        """One number for each pair of rotated channels."""
        value = self.settings.get(name)
        if not isinstance(value, list | tuple) or len(value) != self.rotary_dim // 2:
            raise CheckpointError(
                f"rope scaling of kind {self.kind!r} needs {self.rotary_dim // 2} numbers {name!r}"
            )
        return tuple(float(one) for one in value)


def rope_config(
    hf: HFConfig,
    head_dim: int,
    *,
    layer_type: str | None = None,
    theta_field: str = "rope_theta",
    default_theta: float = 10_000.0,
    default_partial: float = 1.0,
) -> RopeConfig:
    """Reads the settings of all layers, or of one `layer_type` where a family tells them apart.

    `theta_field`: the top-level name of theta in the older spelling.
    """
    settings = _settings(hf, layer_type)
    kind = _kind(settings)
    theta = settings.get("rope_theta") or hf.get(theta_field) or default_theta
    partial = settings.get("partial_rotary_factor") or hf.get("partial_rotary_factor")
    max_positions = count("max_position_embeddings", hf["max_position_embeddings"])
    original = (
        hf.get("original_max_position_embeddings")
        or settings.get("original_max_position_embeddings")
        or max_positions
    )
    return RopeConfig(
        kind=kind,
        theta=float(theta),
        rotary_dim=int(head_dim * float(partial or default_partial)),
        max_positions=max_positions,
        original_positions=int(original),
        settings=settings,
    )


def _settings(hf: HFConfig, layer_type: str | None) -> Mapping[str, Any]:
    settings: Mapping[str, Any] | None = hf.get("rope_parameters")
    if settings is None:
        # The older spelling scales the layers that see everything, never those with a window.
        settings = None if layer_type == "sliding_attention" else hf.get("rope_scaling")
    elif layer_type is not None and layer_type in settings:
        settings = settings[layer_type]
    if settings is not None and not isinstance(settings, Mapping):
        raise CheckpointError(f"config.json: rope settings must be an object, not {settings!r}")
    return settings or {}


def _kind(settings: Mapping[str, Any]) -> str:
    kind = str(settings.get("rope_type") or settings.get("type") or "default")
    if kind == "su":  # The first name of longrope.
        return "longrope"
    if kind not in ROPE_KINDS:
        raise ModelError(f"rope scaling {kind!r} is not known; there are {', '.join(ROPE_KINDS)}")
    return kind


def longest_sequence(hf: HFConfig) -> int:
    """Tokens the model is meant for: dynamic and yarn scaling go beyond the config's number.

    Linear scaling may or may not be in that number already, so it is not taken to extend it.
    """
    limit = count("max_position_embeddings", hf["max_position_embeddings"])
    settings = _settings(hf, None)
    kind, factor = settings.get("rope_type") or settings.get("type"), settings.get("factor")
    if not isinstance(factor, int | float):
        return limit
    if kind == "dynamic":
        return int(limit * factor)
    if kind == "yarn":
        original = settings.get("original_max_position_embeddings") or limit
        return max(limit, int(original * factor))
    return limit
