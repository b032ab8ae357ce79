"""Lay out a machine in a folder, for testing a probe without the hardware."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def write_files(root: Path, files: Mapping[str, str]) -> None:
    """Path below the root -> content."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def add_pci_device(
    root: Path, address: str, *, vendor: int, device: int, base_class: int, driver: str = ""
) -> Path:
    """A function on the PCI bus as sysfs shows it; returns its folder."""
    folder = root / "sys/bus/pci/devices" / address
    write_files(
        folder,
        {
            "vendor": f"0x{vendor:04x}\n",
            "device": f"0x{device:04x}\n",
            "class": f"0x{base_class:02x}0000\n",
        },
    )
    if driver:
        target = root / "sys/bus/pci/drivers" / driver
        target.mkdir(parents=True, exist_ok=True)
        (folder / "driver").symlink_to(target)
    return folder
