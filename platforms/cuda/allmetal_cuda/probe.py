"""Find NVIDIA GPUs without opening one: PCI, /proc/driver/nvidia, /dev, the loader's cache, and the
driver's management library, which alone knows sizes and compute capabilities."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from allmetal.platform import sysfs
from allmetal.platform.contract import Absent, Broken, DeviceInfo, Probe
from allmetal_cuda.nvml import Gpu

VENDOR = 0x10DE
_DRIVER_LIBRARY = "libcuda.so.1"
_WSL_FOLDER = "usr/lib/wsl/lib"


def probe(root: Path, gpus: Callable[[], Sequence[Gpu]]) -> Probe:
    """Devices in the order of PCI addresses.  `gpus` asks the management library."""
    cards = [d for d in sysfs.pci_devices(root, VENDOR) if d.base_class == sysfs.DISPLAY]
    nodes = sysfs.device_files(root, "dev", r"nvidia\d+")
    wsl = (root / "dev/dxg").exists() and (root / _WSL_FOLDER / _DRIVER_LIBRARY).exists()
    if not cards and not nodes and not wsl:
        return Absent(
            "no NVIDIA GPU: no display device of PCI vendor 10de in /sys/bus/pci/devices, "
            "no /dev/nvidia0, no WSL driver beside /dev/dxg"
        )
    if not nodes and not wsl:
        return Broken(_why_closed(cards))
    if not sysfs.has_library(root, _DRIVER_LIBRARY, [_WSL_FOLDER]):
        return Broken(
            f"there is an NVIDIA GPU, but not the driver's library {_DRIVER_LIBRARY}; "
            "in a container: start it with --gpus all, or install the NVIDIA container toolkit"
        )
    return _known(root, gpus()) or _devices(root, nodes) or _unnamed(root, nodes)


def _why_closed(cards: list[sysfs.PciDevice]) -> str:
    first = cards[0]
    where = f"NVIDIA GPU at {first.address}"
    if first.driver == "nvidia":
        return f"{where}, but no /dev/nvidia0; in a container: start it with --gpus all"
    bound = f"is bound to the driver {first.driver!r}" if first.driver else "has no driver"
    return f"{where} {bound}; CUDA needs NVIDIA's driver (kernel module nvidia)"


def _known(root: Path, gpus: Sequence[Gpu]) -> list[DeviceInfo]:
    return [
        DeviceInfo(
            index=index,
            name=gpu.name,
            total_memory=gpu.total_memory,
            arch=arch(gpu.capability),
            driver=_driver_version(root),
            traits={"pci": gpu.address},
        )
        for index, gpu in enumerate(gpus)
    ]


def arch(capability: tuple[int, int]) -> str:
    """(9, 0) -> "sm_90", as the compilers write it."""
    return "sm_{}{}".format(*capability)


def _devices(root: Path, nodes: list[str]) -> list[DeviceInfo]:
    """Named devices, those whose node is in this container."""
    folder = root / "proc/driver/nvidia/gpus"
    found: list[DeviceInfo] = []
    for address in sysfs.device_files(root, "proc/driver/nvidia/gpus", r"[0-9a-f:.]+"):
        lines = (sysfs.text(folder / address / "information") or "").splitlines()
        facts = {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
        if "Device Minor" in facts and f"nvidia{facts['Device Minor']}" not in nodes:
            continue
        name = facts.get("Model", "NVIDIA GPU")
        found.append(_device(root, len(found), name, {"pci": address}))
    return found


def _unnamed(root: Path, nodes: list[str]) -> list[DeviceInfo]:
    """A sandbox may hide /proc/driver, and WSL has none: count the nodes."""
    names = nodes or ["dxg"]
    return [_device(root, i, "NVIDIA GPU", {"node": f"/dev/{n}"}) for i, n in enumerate(names)]


def _device(root: Path, index: int, name: str, traits: dict[str, str]) -> DeviceInfo:
    # Neither sysfs nor /proc tells the memory's size.
    return DeviceInfo(
        index=index, name=name, total_memory=0, driver=_driver_version(root), traits=traits
    )


def _driver_version(root: Path) -> str:
    module = sysfs.text(root / "sys/module/nvidia/version")
    if module:
        return module
    match = re.search(
        r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s",
        sysfs.text(root / "proc/driver/nvidia/version") or "",
    )
    return match[1] if match else ""
