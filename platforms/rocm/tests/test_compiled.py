"""The kernels of a decode step compiled for a GPU of either family: they fit its local memory, and
its registers, so that nothing is kept in scratch memory.  All kernels for all architectures are
compiled in `vendor`."""

from __future__ import annotations

from pathlib import Path

import pytest
from compiling import compiled

pytest.importorskip("triton", reason="needs triton")

HOT = {
    *("multiply_rows", "attention", "attention_input", "rms_norm"),
    *("gated_activation", "chunk_tops", "narrow", "draw"),
}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_hot_kernels_fit_and_keep_nothing_in_scratch_memory(tmp_path: Path) -> None:
    registers = {"hip:gfx942": 512, "hip:gfx1100": 256}  # of a lane, the matrix unit's too
    found = compiled(tmp_path, "--hot", *registers)
    for target, usages in found.items():
        assert HOT <= {usage["name"] for usage in usages}
        assert [] == [usage for usage in usages if usage["spills"]]
        assert max(usage["registers"] for usage in usages) <= registers[target]
        assert max(usage["shared"] for usage in usages) <= 65_536
