from __future__ import annotations

from pathlib import Path

import pytest

from allmetal.platform import sysfs
from allmetal.platform.contract import Absent, Broken
from allmetal.platform.environment import TorchBuild
from allmetal.testing.machine import add_pci_device, write_files
from allmetal_xpu import XpuPlatform

INTEL, DISPLAY, NETWORK = 0x8086, 0x03, 0x02
GIB = 1 << 30
HAS_INTEL_GPU = any(d.base_class == DISPLAY for d in sysfs.pci_devices(Path("/"), INTEL))
FOR_XPU = TorchBuild(version="2.13.0+xpu", built_for={"xpu": "20250302"})


def platform_on(root: Path, torch: TorchBuild | None = FOR_XPU) -> XpuPlatform:
    return XpuPlatform(root, lambda: torch)


def machine_with_one_gpu(root: Path, *, driver: str = "xe", address: str = "0000:03:00.0") -> Path:
    card = add_pci_device(
        root, address, vendor=INTEL, device=0xE20B, base_class=DISPLAY, driver=driver
    )
    write_files(
        root,
        {
            "dev/dri/renderD128": "",
            "etc/ld.so.cache": "\0libze_loader.so.1\0libze_intel_gpu.so.1\0",
        },
    )
    write_files(card, {"drm/renderD128/dev": "226:128\n", "drm/card0/dev": "226:0\n"})
    return card


@pytest.mark.skipif(HAS_INTEL_GPU, reason="needs a machine without Intel GPU")
def test_on_a_machine_without_gpu_the_reason_names_what_was_looked_for() -> None:
    found = XpuPlatform().probe()

    assert isinstance(found, Absent)
    for looked_for in ("Intel", "8086", "/sys/bus/pci/devices"):
        assert looked_for in found.reason


def test_the_memory_of_a_card_under_xe_is_the_sum_of_its_tiles(tmp_path: Path) -> None:
    card = machine_with_one_gpu(tmp_path)
    write_files(card, {f"tile{n}/physical_vram_size_bytes": f"{12 * GIB}\n" for n in (0, 1)})

    found = platform_on(tmp_path).probe()

    assert not isinstance(found, Absent | Broken)
    assert [("Intel GPU e20b", 24 * GIB, "xe", "no")] == [
        (d.name, d.total_memory, d.driver, d.traits["integrated"]) for d in found
    ]


def test_the_memory_of_a_card_under_i915_is_its_local_memory(tmp_path: Path) -> None:
    card = machine_with_one_gpu(tmp_path, driver="i915")
    write_files(card, {"drm/card0/lmem_total_bytes": f"{16 * GIB}\n"})

    found = platform_on(tmp_path).probe()

    assert not isinstance(found, Absent | Broken)
    assert [16 * GIB] == [d.total_memory for d in found]


def test_the_gpu_inside_the_processor_says_so(tmp_path: Path) -> None:
    machine_with_one_gpu(tmp_path, address="0000:00:02.0")

    found = platform_on(tmp_path).probe()

    assert not isinstance(found, Absent | Broken)
    assert found[0].traits["integrated"] == "yes"


def test_intels_network_cards_are_no_gpus(tmp_path: Path) -> None:
    add_pci_device(tmp_path, "0000:01:00.0", vendor=INTEL, device=1, base_class=NETWORK)

    assert isinstance(platform_on(tmp_path).probe(), Absent)


@pytest.mark.parametrize(
    ("removed", "told"),
    [
        ("sys/bus/pci/devices/0000:03:00.0/driver", "its driver is 'none'"),
        ("dev/dri/renderD128", "--device /dev/dri"),
        ("etc/ld.so.cache", "libze_loader.so.1, libze_intel_gpu.so.1"),
    ],
)
def test_what_bars_the_way_to_a_gpu_is_named(tmp_path: Path, removed: str, told: str) -> None:
    machine_with_one_gpu(tmp_path)
    (tmp_path / removed).unlink()

    found = platform_on(tmp_path).probe()

    assert isinstance(found, Broken)
    assert told in found.reason


def test_a_card_without_the_driver_is_not_counted_with_one_that_has_it(tmp_path: Path) -> None:
    add_pci_device(
        tmp_path, "0000:00:02.0", vendor=INTEL, device=1, base_class=DISPLAY, driver="vfio-pci"
    )
    machine_with_one_gpu(tmp_path)

    found = platform_on(tmp_path).probe()

    assert not isinstance(found, Absent | Broken)
    assert [(0, "0000:03:00.0")] == [(d.index, d.traits["pci"]) for d in found]


def test_of_the_drivers_libraries_the_missing_one_is_named(tmp_path: Path) -> None:
    machine_with_one_gpu(tmp_path)
    (tmp_path / "etc/ld.so.cache").write_text("\0libze_loader.so.1\0")

    found = platform_on(tmp_path).probe()

    assert isinstance(found, Broken)
    assert "libraries libze_intel_gpu.so.1: install Intel's compute runtime" in found.reason


@pytest.mark.parametrize(
    ("torch", "told"),
    [
        (None, "torch is not installed"),
        (TorchBuild(version="2.13.0+cpu"), "torch 2.13.0+cpu was built without XPU"),
        (
            TorchBuild(version="2.13.0", built_for={"cuda": "13.0"}),
            "torch 2.13.0 was built without XPU",
        ),
    ],
)
def test_a_torch_that_cannot_drive_the_gpu_is_named_with_what_to_type(
    tmp_path: Path, torch: TorchBuild | None, told: str
) -> None:
    machine_with_one_gpu(tmp_path)

    found = platform_on(tmp_path, torch).probe()

    assert isinstance(found, Broken)
    assert f"Intel GPU at 0000:03:00.0, but {told}" in found.reason
    assert "pip install --force-reinstall torch --index-url" in found.reason
