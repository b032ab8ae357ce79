"""Every kernel compiled for every family of AMD's GPUs, within its registers and local memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from compiling import compiled

from allmetal_rocm.arch import ARCHS

REGISTERS = {64: 512, 32: 256}
"""Of a lane, by the lanes of a wave; CDNA's with those of the matrix unit."""
ALL = {
    *("attention", "attention_input", "schedule", "multiply_rows", "rms_norm", "gated_activation"),
    *("choose_experts", "group_by_expert", "experts_in", "experts_out", "sum_experts"),
    *("chunk_tops", "pick_top", "narrow", "collect", "resolve", "chunk_masses", "draw"),
    *("read_state", "write_state"),
}
# RDNA 3 holds rows of 512 channels in no way, and those of 128 with keys in 8 bits just not.
SCRATCH = {"gfx1100": [16, 320, 340]}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"])
def test_every_kernel_fits_and_only_known_ones_use_scratch_memory(
    arch: str, tmp_path: Path
) -> None:
    (usages,) = compiled(tmp_path, f"hip:{arch}").values()
    assert ALL <= {usage["name"] for usage in usages}
    for usage in usages:
        assert usage["shared"] <= ARCHS[arch].lds, usage
        assert usage["registers"] <= REGISTERS[ARCHS[arch].wave], usage
    spilled = sorted(usage["spills"] for usage in usages if usage["spills"])
    allowed = SCRATCH.get(arch, [])
    assert len(spilled) <= len(allowed), spilled
    assert all(real <= most for real, most in zip(spilled, allowed, strict=False)), spilled
