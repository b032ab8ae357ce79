"""Every shared kernel compiled to SPIR-V by triton-xpu, for Ponte Vecchio and Battlemage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import compiling
import pytest

from allmetal_xpu.kernels import LOCAL_MEMORY

MULTIPLYING = {"attention", "experts_in", "experts_out"}
FAMILIES = {
    "attention": {"schedule", "attention"},
    "attention_input": {"attention_input"},
    "moe": {"choose_experts", "group_by_expert", "sum_experts", "experts_in", "experts_out"},
    "rest": {
        *("rms_norm", "gated_activation", "read_state", "write_state", "multiply_rows"),
        *("chunk_tops", "pick_top", "draw", "narrow", "collect", "resolve", "chunk_masses"),
    },
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("spirv")
    return compiling.compiled(folder, program=Path(__file__).with_name("compile_spirv.py"))


@pytest.mark.timeout(500)
@pytest.mark.parametrize("arch", ["pvc", "bmg"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_kernel_becomes_spirv_and_fits(
    compiled: dict[str, Any], arch: str, family: str
) -> None:
    made = compiled[arch][family]
    assert made["failure"] == ""
    assert FAMILIES[family] <= {kernel["name"] for kernel in made["kernels"]}
    for kernel in made["kernels"]:
        assert kernel["spirv"], kernel
        assert kernel["shared"] <= LOCAL_MEMORY, kernel
        assert kernel["matrix_unit"] or kernel["name"] not in MULTIPLYING, kernel
