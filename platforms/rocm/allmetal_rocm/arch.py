"""What generations of AMD GPUs differ in, for kernels.

Sources: the CDNA 3 and 4 and RDNA 3 and 4 instruction set guides (LDS sizes, matrix instructions,
8-bit floating point formats).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Arch:
    """`lds`: bytes of local memory a workgroup may have.  `wave`: threads of a wave.  `float8`:
    whether its matrix unit takes the formats of the OCP ("ocp"), those of CDNA 3 with other
    exponents ("fnuz"), or none ("")."""

    family: str
    lds: int
    wave: int
    float8: str = ""


ARCHS = {
    "gfx90a": Arch(family="CDNA 2", lds=65_536, wave=64),
    "gfx942": Arch(family="CDNA 3", lds=65_536, wave=64, float8="fnuz"),
    "gfx950": Arch(family="CDNA 4", lds=163_840, wave=64, float8="ocp"),
    "gfx1100": Arch(family="RDNA 3", lds=65_536, wave=32),
    "gfx1101": Arch(family="RDNA 3", lds=65_536, wave=32),
    "gfx1102": Arch(family="RDNA 3", lds=65_536, wave=32),
    "gfx1151": Arch(family="RDNA 3.5", lds=65_536, wave=32),
    "gfx1200": Arch(family="RDNA 4", lds=65_536, wave=32, float8="ocp"),
    "gfx1201": Arch(family="RDNA 4", lds=65_536, wave=32, float8="ocp"),
}
"""Those the kernels are written for; they were compiled for some of each family."""


def plain(arch: str) -> str:
    """Without the features behind it: gfx942:sramecc+:xnack- is gfx942."""
    return arch.partition(":")[0]
