"""The table of chips says what the vendor's own library says."""

from __future__ import annotations

import jax.numpy as jnp
import pytest
from jax._src.pallas.mosaic.tpu_info import ChipVersion, get_tpu_info_for_chip

from allmetal_tpu.pallas.chips import CHIPS

VERSIONS = {
    "v5e": ChipVersion.TPU_V5E,
    "v5p": ChipVersion.TPU_V5P,
    "v6e": ChipVersion.TPU_V6E,
    "v7x": ChipVersion.TPU_7X,
}


def test_every_chip_is_compared() -> None:
    assert set(VERSIONS) == set(CHIPS)


@pytest.mark.parametrize("name", CHIPS)
def test_figures_are_the_vendors(name: str) -> None:
    chip = CHIPS[name]

    info = get_tpu_info_for_chip(VERSIONS[name], chip.cores)

    assert info.vmem_capacity_bytes == chip.vmem
    assert info.mxu_column_size == chip.mxu
    assert info.mem_bw_bytes_per_second == pytest.approx(chip.bandwidth, rel=0.01)
    assert info.bf16_ops_per_second == pytest.approx(chip.operations, rel=0.01)
    assert info.is_matmul_supported(jnp.int8, jnp.int8) == chip.int8
    assert info.is_matmul_supported(jnp.float8_e4m3fn, jnp.float8_e4m3fn) == chip.float8
