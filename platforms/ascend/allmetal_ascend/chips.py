"""What generations of Ascend NPUs differ in, for kernels.

Sources: the driver's PCI ids; the products that torch_npu's documents list for each operator.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """`arch`: the vendor's name for it.  `products`: what it is sold in.  `bfloat16`: whether its
    matrix unit computes it.  `fused_attention`: whether attention over a paged cache is one
    operator.  `per_token`: whether products of 8-bit integers take a scale for every token.
    `grouped`: whether one operator multiplies by many experts' weights."""

    arch: str
    products: str
    bfloat16: bool
    fused_attention: bool
    per_token: bool
    grouped: bool


A2 = Chip(
    arch="910B",
    products="Atlas A2: 800I A2, 800T A2, 300I A2",
    bfloat16=True,
    fused_attention=True,
    per_token=True,
    grouped=True,
)
A3 = Chip(
    arch="910_93",
    products="Atlas A3: 800I A3, 800T A3 (910C)",
    bfloat16=True,
    fused_attention=True,
    per_token=True,
    grouped=True,
)
INFERENCE = Chip(
    arch="310P",
    products="Atlas 300I Duo, 300V, 200I",
    bfloat16=False,
    fused_attention=False,
    per_token=False,
    grouped=False,
)
CHIPS = {chip.arch: chip for chip in (A2, A3, INFERENCE)}
"""Those whose operators are documented.  Of others (310, 910, 950) nothing is claimed."""


def of(arch: str) -> Chip | None:
    """`arch` as the probe says it, or as the runtime names the chip: Ascend910B2 is a 910B."""
    name = arch.removeprefix("Ascend")
    return next((chip for key, chip in CHIPS.items() if name.startswith(key)), None)
