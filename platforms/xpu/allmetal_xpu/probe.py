"""Find Intel GPUs without opening one: PCI, the DRM driver in sysfs, /dev/dri, Level Zero; and what
torch was built for, by its own file."""

from __future__ import annotations

from pathlib import Path

from allmetal.platform import sysfs
from allmetal.platform.contract import Absent, Broken, DeviceInfo, Probe
from allmetal.platform.environment import TorchBuild

VENDOR = 0x8086
_DRIVERS = ("xe", "i915")
_LOADER, _RUNTIME = "libze_loader.so.1", "libze_intel_gpu.so.1"


def probe(root: Path, torch: TorchBuild | None) -> Probe:
    """Devices in bus order.  Integrated GPUs count, and say so in their traits."""
    cards = [d for d in sysfs.pci_devices(root, VENDOR) if d.base_class == sysfs.DISPLAY]
    if not cards:
        return Absent("no Intel GPU: no display device of PCI vendor 8086 in /sys/bus/pci/devices")
    driven = [c for c in cards if c.driver in _DRIVERS]
    if not driven:
        bound = cards[0].driver or "none"
        return Broken(
            f"Intel GPU at {cards[0].address}, but its driver is {bound!r}; "
            "XPU needs the kernel driver xe or i915"
        )
    usable = [c for c in driven if _render_node(root, c)]
    if not usable:
        return Broken(
            f"Intel GPU at {driven[0].address}, but no /dev/dri/renderD* for it; "
            "in a container: start it with --device /dev/dri"
        )
    missing = [lib for lib in (_LOADER, _RUNTIME) if not sysfs.has_library(root, lib)]
    if missing:
        return Broken(
            f"Intel GPU at {usable[0].address}, but not the driver's libraries "
            f"{', '.join(missing)}: install Intel's compute runtime (Level Zero)"
        )
    if torch is None or "xpu" not in torch.built_for:
        found = (
            f"torch {torch.version} was built without XPU" if torch else "torch is not installed"
        )
        return Broken(
            f"Intel GPU at {usable[0].address}, but {found}: pip install --force-reinstall torch "
            "--index-url https://download.pytorch.org/whl/xpu"
        )
    return [_device(index, card) for index, card in enumerate(usable)]


def _render_node(root: Path, card: sysfs.PciDevice) -> bool:
    names = sysfs.device_files(card.folder, "drm", r"renderD\d+")
    return any((root / "dev/dri" / name).exists() for name in names)


def _device(index: int, card: sysfs.PciDevice) -> DeviceInfo:
    memory = _local_memory(card.folder)
    return DeviceInfo(
        index=index,
        name=f"Intel GPU {card.device:04x}",
        total_memory=memory,
        driver=card.driver,
        traits={
            "pci": card.address,
            # By convention the GPU inside the processor is function 00:02.0 of the first bus.
            "integrated": "yes" if card.address.endswith(":00:02.0") else "no",
        },
    )


def _local_memory(folder: Path) -> int:
    """Bytes; xe tells each tile's, i915 the card's; 0 where the driver tells none."""
    tiles = sysfs.device_files(folder, ".", r"tile\d+")
    sizes = [sysfs.number(folder / tile / "physical_vram_size_bytes") or 0 for tile in tiles]
    if any(sizes):
        return sum(sizes)
    cards = sysfs.device_files(folder, "drm", r"card\d+")
    return max(
        (sysfs.number(folder / "drm" / c / "lmem_total_bytes") or 0 for c in cards), default=0
    )
