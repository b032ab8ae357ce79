from __future__ import annotations

from pathlib import Path

import pytest

from allmetal.platform.contract import Absent, Broken
from allmetal.platform.environment import TorchBuild
from allmetal.testing.machine import add_pci_device, write_files
from allmetal_rocm import RocmPlatform
from allmetal_rocm.probe import gfx_name

AMD, DISPLAY, ACCELERATOR = 0x1002, 0x03, 0x12
NODES = "sys/class/kfd/kfd/topology/nodes"
GIB = 1 << 30
FOR_ROCM = TorchBuild(version="2.13.0+rocm7.1", built_for={"hip": "7.1"})


def platform_on(root: Path, torch: TorchBuild | None = FOR_ROCM) -> RocmPlatform:
    return RocmPlatform(root, lambda: torch)


def machine_with_one_gpu(root: Path, *, base_class: int = ACCELERATOR) -> None:
    card = add_pci_device(
        root, "0001:c1:00.0", vendor=AMD, device=0x74A1, base_class=base_class, driver="amdgpu"
    )
    write_files(
        card,
        {"product_name": "AMD Instinct MI300X\n", "mem_info_vram_total": f"{192 * GIB}\n"},
    )
    write_files(
        root,
        {
            f"{NODES}/0/properties": "cpu_cores_count 96\nsimd_count 0\ngfx_target_version 0\n",
            f"{NODES}/1/properties": "simd_count 1216\ngfx_target_version 90402\n"
            f"location_id {0xC1 << 8}\ndomain 1\ndrm_render_minor 128\n",
            "dev/kfd": "",
            "dev/dri/renderD128": "",
            "sys/module/amdgpu/version": "6.10.5\n",
        },
    )


@pytest.mark.skipif(Path("/dev/kfd").exists(), reason="needs a machine without AMD GPU")
def test_on_a_machine_without_gpu_the_reason_names_what_was_looked_for() -> None:
    found = RocmPlatform().probe()

    assert isinstance(found, Absent)
    for looked_for in ("AMD", "1002", "/sys/bus/pci/devices", "/sys/class/kfd/kfd/topology"):
        assert looked_for in found.reason


@pytest.mark.parametrize("base_class", [DISPLAY, ACCELERATOR])
def test_a_device_is_found_with_name_memory_and_architecture(
    tmp_path: Path, base_class: int
) -> None:
    machine_with_one_gpu(tmp_path, base_class=base_class)

    found = platform_on(tmp_path).probe()

    assert not isinstance(found, Absent | Broken)
    assert [("AMD Instinct MI300X", 192 * GIB, "gfx942", "6.10.5", "0001:c1:00.0")] == [
        (d.name, d.total_memory, d.arch, d.driver, d.traits["pci"]) for d in found
    ]


@pytest.mark.parametrize(
    ("version", "name"),
    [(90402, "gfx942"), (90010, "gfx90a"), (90500, "gfx950"), (110003, "gfx1103"), (0, "")],
)
def test_the_architecture_is_spelled_as_the_compiler_does(version: int, name: str) -> None:
    assert gfx_name(version) == name


def test_a_container_that_was_given_some_gpus_sees_those(tmp_path: Path) -> None:
    machine_with_one_gpu(tmp_path)
    write_files(
        tmp_path, {f"{NODES}/2/properties": "simd_count 1216\ndrm_render_minor 129\ndomain 0\n"}
    )

    found = platform_on(tmp_path).probe()

    assert not isinstance(found, Absent | Broken)
    assert len(found) == 1


@pytest.mark.parametrize(
    ("removed", "told"),
    [
        ("dev/kfd", "--device /dev/kfd"),
        ("dev/dri/renderD128", "/dev/dri/renderD*"),
        (f"{NODES}/1/properties", "no compute node"),
    ],
)
def test_what_bars_the_way_to_a_gpu_is_named(tmp_path: Path, removed: str, told: str) -> None:
    machine_with_one_gpu(tmp_path)
    (tmp_path / removed).unlink()

    found = platform_on(tmp_path).probe()

    assert isinstance(found, Broken)
    assert told in found.reason


def test_a_gpu_under_another_driver_is_broken(tmp_path: Path) -> None:
    add_pci_device(
        tmp_path, "0000:03:00.0", vendor=AMD, device=1, base_class=DISPLAY, driver="radeon"
    )

    found = platform_on(tmp_path).probe()

    assert isinstance(found, Broken)
    assert "'radeon'" in found.reason


@pytest.mark.parametrize(
    ("torch", "told"),
    [
        (None, "torch is not installed"),
        (TorchBuild(version="2.13.0+cpu"), "torch 2.13.0+cpu was built without ROCm"),
        (
            TorchBuild(version="2.13.0", built_for={"cuda": "13.0"}),
            "torch 2.13.0 was built without ROCm",
        ),
    ],
)
def test_a_torch_that_cannot_drive_the_gpu_is_named_with_what_to_type(
    tmp_path: Path, torch: TorchBuild | None, told: str
) -> None:
    machine_with_one_gpu(tmp_path)

    found = platform_on(tmp_path, torch).probe()

    assert isinstance(found, Broken)
    assert f"AMD Instinct MI300X at 0001:c1:00.0, but {told}" in found.reason
    assert "pip install --force-reinstall torch --index-url" in found.reason


def add_gpu_in_the_processor(root: Path, node: int) -> None:
    write_files(
        root,
        {
            f"{NODES}/{node}/properties": "simd_count 4\ngfx_target_version 100306\n"
            f"location_id {0x0E << 8}\ndrm_render_minor 129\n",
            "dev/kfd": "",
            "dev/dri/renderD129": "",
        },
    )


def test_a_gpu_without_kernels_is_broken(tmp_path: Path) -> None:
    add_gpu_in_the_processor(tmp_path, 1)

    found = platform_on(tmp_path).probe()

    assert isinstance(found, Broken)
    assert "at 0000:0e:00.0 is gfx1036; there are kernels for gfx90a, gfx942" in found.reason


def test_a_gpu_without_kernels_beside_a_card_is_passed_over(tmp_path: Path) -> None:
    machine_with_one_gpu(tmp_path)
    add_gpu_in_the_processor(tmp_path, 2)

    found = platform_on(tmp_path).probe()

    assert not isinstance(found, Absent | Broken)
    assert [(0, "gfx942")] == [(d.index, d.arch) for d in found]


def test_a_driver_that_tells_no_architecture_leaves_it_to_torch(tmp_path: Path) -> None:
    machine_with_one_gpu(tmp_path)
    node = tmp_path / NODES / "1/properties"
    node.write_text(node.read_text().replace("gfx_target_version 90402\n", ""))

    found = platform_on(tmp_path).probe()

    assert not isinstance(found, Absent | Broken)
    assert [""] == [d.arch for d in found]
