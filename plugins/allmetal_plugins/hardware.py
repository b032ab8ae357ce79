"""Which hardware is in this machine, as far as files tell: for naming the platform it needs.

A platform's own probe knows better; this is what can be said before it is installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from allmetal.platform import sysfs
from allmetal.platform.hints import HardwareHint
from allmetal.plugins.hookspecs import hookimpl

_SMALL = 4 << 30
"""AMD graphics inside a processor have at most this much memory by default."""
_TPU_DEVICES = (0x0027, 0x0056, 0x005E, 0x0062, 0x0063, 0x006F, 0x0076)


@hookimpl
def allmetal_hardware_hints() -> list[HardwareHint]:
    return hints(Path("/"))


def hints(root: Path) -> list[HardwareHint]:
    """One hint a platform; `root` is where the file system begins."""
    first: dict[str, HardwareHint] = {}
    for platform, seen in _all(root):
        first.setdefault(platform, HardwareHint(platform=platform, seen=seen))
    return list(first.values())


def _all(root: Path) -> Iterator[tuple[str, str]]:
    for card in sysfs.pci_devices(root, 0x10DE):
        if card.base_class == sysfs.DISPLAY:
            yield "cuda", f"an NVIDIA GPU at PCI {card.address}"
    for name in sysfs.device_files(root, "dev", r"nvidia\d+"):
        yield "cuda", f"an NVIDIA GPU, /dev/{name}"
    if (root / "dev/dxg").exists() and (root / "usr/lib/wsl/lib/libcuda.so.1").exists():
        yield "cuda", "an NVIDIA GPU, through WSL"
    for card in sysfs.pci_devices(root, 0x1002):
        memory = sysfs.number(card.folder / "mem_info_vram_total")
        if card.base_class == sysfs.ACCELERATOR or (
            card.base_class == sysfs.DISPLAY and (memory is None or memory > _SMALL)
        ):
            yield "rocm", f"an AMD GPU at PCI {card.address}"
    for card in sysfs.pci_devices(root, 0x8086):
        # By convention 00:02.0 is the graphics unit inside the processor.
        if card.base_class == sysfs.DISPLAY and not card.address.endswith(":00:02.0"):
            yield "xpu", f"an Intel GPU at PCI {card.address}"
    for card in sysfs.pci_devices(root, 0x1AE0):
        if card.device in _TPU_DEVICES:
            yield "tpu", f"a TPU at PCI {card.address}"
    for card in sysfs.pci_devices(root, 0x19E5):
        if card.base_class == sysfs.ACCELERATOR:
            yield "ascend", f"an Ascend NPU at PCI {card.address}"
    for name in sysfs.device_files(root, "dev", r"davinci\d+"):
        yield "ascend", f"an Ascend NPU, /dev/{name}"
