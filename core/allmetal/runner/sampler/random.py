"""Randomness without generator state: a uniform number is a function of (seed, position).

A row's number depends on nothing else, so a request draws the same tokens whatever runs beside
it, and again after a preemption.  This is SplitMix64 (Steele, Lea, Flood: Fast Splittable
Pseudorandom Number Generators, OOPSLA 2014): state key + position * golden gamma, then its mix.
The key is the mixed seed, so neighbouring seeds give unrelated streams.
"""

from __future__ import annotations

import torch

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_SEED_SALT = 0xD1B54A32D192ED03  # keeps seed 0 from being the mix's fixed point


def _signed(word: int) -> int:
    """The int64 with the same 64 bits."""
    return word - (1 << 64) if word >> 63 else word


def stream_key(seed: int) -> int:
    """The key of a seed's stream, as a signed 64-bit integer."""
    z = ((seed & _MASK) + _SEED_SALT) & _MASK
    z = ((z ^ (z >> 30)) * _MIX_1) & _MASK
    z = ((z ^ (z >> 27)) * _MIX_2) & _MASK
    return _signed(z ^ (z >> 31))


def uniform(keys: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """keys, positions [B] int64 -> [B] float32 in [0, 1), 24 random bits each.

    int64 products wrap, as the generator wants; shifts are made logical by masking.
    """
    z = keys + positions * _signed(_GAMMA)
    z = (z ^ _shift(z, 30)) * _signed(_MIX_1)
    z = (z ^ _shift(z, 27)) * _signed(_MIX_2)
    z = z ^ _shift(z, 31)
    return _shift(z, 40).to(torch.float32) * 2.0**-24


def _shift(z: torch.Tensor, bits: int) -> torch.Tensor:
    return (z >> bits) & ((1 << (64 - bits)) - 1)
