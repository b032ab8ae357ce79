"""Rotary embeddings as tables of cosines and sines, one row a position.

Sources: rotary embedding arXiv:2104.09864; linear scaling arXiv:2306.15595; yarn
arXiv:2309.00071; longrope arXiv:2402.13753; llama3 arXiv:2407.21783.

Legend: P positions, R rotary dim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from allmetal_models.context import BuildContext
from allmetal_models.rope_config import RopeConfig


@dataclass(frozen=True, slots=True)
class Rotary:
    """`cos_sin` [P, R] float32, cosines then sines; `interleaved` as in AttentionInputSpec."""

    cos_sin: torch.Tensor
    interleaved: bool = False

    @property
    def dim(self) -> int:
        return self.cos_sin.shape[1]


def rotary(ctx: BuildContext, config: RopeConfig, *, interleaved: bool = False) -> Rotary:
    """The table for every position up to `ctx.max_model_len`."""
    num_positions = ctx.max_model_len
    if ctx.device.type == "meta":  # only the shape is asked for, and whether the config is sound
        frequencies, _ = _KINDS[config.kind](config, num_positions)
        shape = (num_positions, 2 * frequencies.shape[-1])
        return Rotary(torch.empty(shape, device=ctx.device), interleaved)
    return Rotary(cos_sin_table(config, num_positions).to(ctx.device), interleaved)


def cos_sin_table(config: RopeConfig, num_positions: int) -> torch.Tensor:
    """[P, R] float32, scaled where the kind scales attention too."""
    positions = torch.arange(num_positions, dtype=torch.float32)[:, None]
    frequencies, scale = _KINDS[config.kind](config, num_positions)
    angles = positions * frequencies
    table = torch.empty(num_positions, 2 * angles.shape[1])
    torch.cos(angles, out=table[:, : angles.shape[1]])
    torch.sin(angles, out=table[:, angles.shape[1] :])
    return table if scale == 1.0 else table.mul_(scale)


def _plain(config: RopeConfig, theta: float | None = None) -> torch.Tensor:
    """theta^(-2i / R) for i < R / 2: [R / 2] float32."""
    exponents = torch.arange(0, config.rotary_dim, 2, dtype=torch.float32) / config.rotary_dim
    return 1.0 / ((theta or config.theta) ** exponents)


# ---- kinds: frequencies [R / 2] or [P, R / 2], and the factor on cosines and sines -------------


def _default(config: RopeConfig, num_positions: int) -> tuple[torch.Tensor, float]:
    return _plain(config), 1.0


def _linear(config: RopeConfig, num_positions: int) -> tuple[torch.Tensor, float]:
    return _plain(config) / config.number("factor"), 1.0


def _dynamic(config: RopeConfig, num_positions: int) -> tuple[torch.Tensor, float]:
    """A base that grows with the sequence beyond the trained length.

    The rule is stated for a length, and a table knows positions only.  Row p is made for length
    p + 1: what a token gets that is decoded at p.  So decoding equals recomputing the base at
    every step (keys stay as they were cached), and a row never depends on its neighbours.  Only a
    prompt longer than the trained length differs from one pass over it whole, where the last
    token's base would serve the first as well.
    """
    factor, dim = config.number("factor"), config.rotary_dim
    longer = max(0, num_positions - config.max_positions)
    lengths = torch.arange(config.max_positions + 1, config.max_positions + longer + 1)
    stretch = factor * lengths.double() / config.max_positions - (factor - 1)
    bases = (config.theta * stretch ** (dim / (dim - 2))).float()
    exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim
    within = _plain(config).expand(num_positions - longer, -1)
    return torch.cat([within, 1.0 / bases[:, None] ** exponents]), 1.0


def _llama3(config: RopeConfig, num_positions: int) -> tuple[torch.Tensor, float]:
    """Long waves are slowed by `factor`, short ones kept, those between blended."""
    factor, original = config.number("factor"), config.original_positions
    low, high = config.number("low_freq_factor"), config.number("high_freq_factor")
    plain = _plain(config)
    turns = original * plain / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - kept) * plain / factor + kept * plain, 1.0


def _yarn(config: RopeConfig, num_positions: int) -> tuple[torch.Tensor, float]:
    """Channels that turn often keep their frequency, slow ones are interpolated."""
    settings, dim, theta = config.settings, config.rotary_dim, config.theta
    original = config.original_positions
    factor = settings.get("factor") or config.max_positions / original

    def channel(turns: float) -> float:
        """The channel that turns so often over the original length."""
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = channel(settings.get("beta_fast") or 32)
    high = channel(settings.get("beta_slow") or 1)
    if settings.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = (torch.arange(dim // 2, dtype=torch.float32) - low) / ((high - low) or 0.001)
    kept = 1 - ramp.clamp(0, 1)
    plain = _plain(config)
    return plain / factor * (1 - kept) + plain * kept, _yarn_scale(config, factor)


def _yarn_scale(config: RopeConfig, factor: float) -> float:
    settings = config.settings
    if settings.get("attention_factor") is not None:
        return config.number("attention_factor")

    def scale(mscale: float) -> float:
        return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0

    if settings.get("mscale") and settings.get("mscale_all_dim"):
        return scale(config.number("mscale")) / scale(config.number("mscale_all_dim"))
    return scale(1.0)


def _longrope(config: RopeConfig, num_positions: int) -> tuple[torch.Tensor, float]:
    """Each channel has its own factor, from one list for short sequences or one for long ones.

    The rule asks for a sequence's length and changes all of its rows when it crosses the original
    length, cached keys included.  One table cannot: the longest sequence that will be served
    decides.  Serving within the original length is exact, and so is every sequence beyond it;
    a short sequence of an engine that serves long ones is rotated as the start of a long one.
    """
    original = config.original_positions
    factors = config.numbers("long_factor" if num_positions > original else "short_factor")
    factor = config.settings.get("factor") or config.max_positions / original
    scale = config.settings.get("attention_factor")
    if scale is None:
        scale = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return _plain(config) / torch.tensor(factors), float(scale)


_KINDS: Mapping[str, Callable[[RopeConfig, int], tuple[torch.Tensor, float]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
