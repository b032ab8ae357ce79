from __future__ import annotations

from pathlib import Path

from allmetal.platform import sysfs
from allmetal.testing.machine import add_pci_device, write_files


def test_only_the_vendors_functions_are_listed_and_in_bus_order(tmp_path: Path) -> None:
    add_pci_device(tmp_path, "0000:82:00.0", vendor=0x1234, device=2, base_class=3, driver="drv")
    add_pci_device(tmp_path, "0000:0a:00.0", vendor=0x1234, device=1, base_class=0x12)
    add_pci_device(tmp_path, "0000:01:00.0", vendor=0x4321, device=9, base_class=3)

    found = sysfs.pci_devices(tmp_path, 0x1234)

    assert [("0000:0a:00.0", 1, 0x12, ""), ("0000:82:00.0", 2, 3, "drv")] == [
        (d.address, d.device, d.base_class, d.driver) for d in found
    ]


def test_a_function_with_unreadable_ids_is_left_out(tmp_path: Path) -> None:
    folder = add_pci_device(tmp_path, "0000:01:00.0", vendor=0x1234, device=1, base_class=3)
    (folder / "class").write_text("not a number")

    assert sysfs.pci_devices(tmp_path, 0x1234) == []


def test_a_machine_without_sysfs_has_nothing(tmp_path: Path) -> None:
    assert sysfs.pci_devices(tmp_path, 0x1234) == []
    assert sysfs.device_files(tmp_path, "dev", ".*") == []
    assert sysfs.text(tmp_path / "nothing") is None
    assert sysfs.number(tmp_path / "nothing") is None
    assert not sysfs.has_library(tmp_path, "libx.so.1")


def test_device_files_are_sorted_by_number_and_matched_whole(tmp_path: Path) -> None:
    write_files(tmp_path, {f"dev/card{n}": "" for n in ("10", "2", "0", "ctl")})

    assert sysfs.device_files(tmp_path, "dev", r"card\d+") == ["card0", "card2", "card10"]


def test_a_library_is_found_in_the_loaders_cache_and_in_the_folders(tmp_path: Path) -> None:
    write_files(tmp_path, {"etc/ld.so.cache": "x\0libone.so.1\0y", "opt/v/libtwo.so": ""})

    assert sysfs.has_library(tmp_path, "libone.so.1")
    assert not sysfs.has_library(tmp_path, "libone.so")
    assert not sysfs.has_library(tmp_path, "libtwo.so")
    assert sysfs.has_library(tmp_path, "libtwo.so", ["opt/v"])


def test_the_loaders_cache_of_this_machine_is_read() -> None:
    assert sysfs.has_library(Path("/"), "libc.so.6")
    assert not sysfs.has_library(Path("/"), "libc.so.6000")
