"""The generations of TPUs, and what of them decides something here.

Sources: Google's pages on each generation (cloud.google.com/tpu/docs), and jax's own tables for
Pallas kernels (`jax.experimental.pallas.tpu`, `TpuInfo`).
"""

from __future__ import annotations

from dataclasses import dataclass

_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """`memory`: bytes of a chip.  `devices`: what a chip is seen as, each with its share of that.
    `float8`: its matrix units multiply 8-bit floating point.  `runs_torch`: TorchTPU knows it."""

    name: str
    memory: int = 0
    devices: int = 1
    float8: bool = False
    runs_torch: bool = True

    @property
    def device_memory(self) -> int:
        return self.memory // self.devices


OLD = Generation(name="v2 or v3", runs_torch=False)
GENERATIONS = {
    0x0027: OLD,
    0x0056: Generation(name="", runs_torch=False),  # in the public lists without a name
    0x005E: Generation(name="v4", memory=32 * _GIB),
    0x0062: Generation(name="v5p", memory=95 * _GIB),
    0x0063: Generation(name="v5e", memory=16 * _GIB),
    0x006F: Generation(name="v6e", memory=32 * _GIB),
    0x0076: Generation(name="v7x", memory=192 * _GIB, devices=2, float8=True),
}
"""PCI device id -> generation.  Google's network cards share the vendor id, so a list it is."""


def generation(arch: str) -> Generation | None:
    """By the name that a device found by the probe has."""
    return next((each for each in GENERATIONS.values() if each.name == arch and arch), None)
