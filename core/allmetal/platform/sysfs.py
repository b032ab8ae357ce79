"""What a probe may look at without opening a device: sysfs, device files, the loader's cache.

Every function takes the file system's root, so that a test can lay out a machine in a folder,
and answers "nothing" where a file is missing or unreadable: probing never raises.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from allmetal.config import loader_path

DISPLAY = 0x03
"""PCI base class of display controllers: graphics cards and the 3D controllers of servers."""
ACCELERATOR = 0x12
"""PCI base class of processing accelerators."""

_LIBRARY_FOLDERS = (
    "usr/lib64",
    "usr/lib",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/local/lib",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PciDevice:
    """One function on a PCI bus.  `driver` is the bound kernel driver, "" for none."""

    address: str
    device: int
    base_class: int
    driver: str
    folder: Path


def text(path: Path) -> str | None:
    """A small file's content, stripped, or None where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def number(path: Path) -> int | None:
    """A file that holds one integer, decimal or with a prefix such as 0x."""
    content = text(path)
    try:
        return int(content, 0) if content else None
    except ValueError:
        return None


def pci_devices(root: Path, vendor: int) -> list[PciDevice]:
    """The vendor's functions on all PCI buses, in bus order."""
    found = []
    for folder in _entries(root / "sys/bus/pci/devices"):
        if number(folder / "vendor") != vendor:
            continue
        device, cls = number(folder / "device"), number(folder / "class")
        if device is None or cls is None:
            continue
        driver = folder / "driver"
        found.append(
            PciDevice(
                address=folder.name,
                device=device,
                base_class=cls >> 16,
                driver=driver.resolve().name if driver.exists() else "",
                folder=folder,
            )
        )
    return found


def device_files(root: Path, folder: str, pattern: str) -> list[str]:
    """Names in `folder` (below the root) that match the regular expression whole."""
    accept: Callable[[str], object] = re.compile(pattern).fullmatch
    return [entry.name for entry in _entries(root / folder) if accept(entry.name)]


def has_library(root: Path, soname: str, folders: Iterable[str] = ()) -> bool:
    """Whether the dynamic loader would find `soname`; `folders` are looked into as well."""
    try:
        if soname.encode() + b"\0" in (root / "etc/ld.so.cache").read_bytes():
            return True
    except OSError:
        pass
    return any((root / folder / soname).exists() for folder in (*folders, *_LIBRARY_FOLDERS))


def loader_folders() -> tuple[str, ...]:
    """Where the dynamic loader looks first because the user says so, below the root, for
    `has_library`."""
    return tuple(folder.lstrip("/") for folder in loader_path())


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir(), key=_natural)
    except OSError:
        return []


def _natural(path: Path) -> list[tuple[int, str]]:
    """card2 before card10; PCI addresses are hexadecimal and of fixed width already."""
    if ":" in path.name:
        return [(0, path.name)]
    parts = re.split(r"(\d+)", path.name)
    return [(int(p), "") if p.isdigit() else (-1, p) for p in parts]
