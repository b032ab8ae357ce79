"""Find Google TPUs without opening one: PCI, /dev/accel* or /dev/vfio, and the packages that drive
them, by their metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from allmetal.platform import sysfs
from allmetal.platform.contract import Absent, Broken, DeviceInfo, Probe
from allmetal.platform.environment import unmet
from allmetal_tpu.generations import GENERATIONS

VENDOR = 0x1AE0
TORCH = ("2.11", "2.15")
"""The torch releases that TorchTPU is made for."""
_NEEDED = ("torch-tpu", "libtpu")
_WATCHED = (*_NEEDED, "torch", "torch-xla")


def installed() -> dict[str, str]:
    """Distribution -> version, of those that matter here."""
    found = {}
    for name in _WATCHED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def probe(root: Path, packages: Mapping[str, str] | None = None) -> Probe:
    """Chips in bus order, each as often as it is seen as a device.  `packages`: what is installed,
    looked up unless given."""
    chips = [d for d in sysfs.pci_devices(root, VENDOR) if d.device in GENERATIONS]
    if not chips:
        return Absent(
            "no TPU: no chip of PCI vendor 1ae0 with a known TPU device id in /sys/bus/pci/devices"
        )
    packages = installed() if packages is None else packages
    reason = _unreachable(root, chips) or _too_old(chips) or _unusable(packages)
    if reason is not None:
        return Broken(f"TPU at {chips[0].address}, {reason}")
    devices: list[DeviceInfo] = []
    for chip in chips:
        for _ in range(GENERATIONS[chip.device].devices):
            devices.append(_device(len(devices), chip))
    return devices


def _unreachable(root: Path, chips: Sequence[sysfs.PciDevice]) -> str | None:
    # v2 to v4 have a driver of their own; later generations are handed over through VFIO.
    old = sysfs.device_files(root, "dev", r"accel\d+")
    if old or sysfs.device_files(root, "dev/vfio", r"\d+"):
        return None
    if all(not chip.driver for chip in chips):
        return (
            "but no driver is bound to it, and neither /dev/accel* nor /dev/vfio/* is there: "
            "modprobe vfio-pci, or take a TPU VM's own image"
        )
    return (
        "but neither /dev/accel* nor /dev/vfio/*; "
        "in a container: start it with --privileged, or ask the cluster for google.com/tpu"
    )


def _too_old(chips: Sequence[sysfs.PciDevice]) -> str | None:
    known = GENERATIONS[chips[0].device]
    if known.runs_torch:
        return None
    return f"but TorchTPU runs on v4 and later, and this is {known.name or 'unnamed'}"


def _unusable(packages: Mapping[str, str]) -> str | None:
    """What of the software is missing or does not fit."""
    torch = packages.get("torch")
    if torch is None:
        return "but not the Python package torch: pip install torch torch-tpu libtpu"
    first, last = TORCH
    fits = not unmet(f"torch>={first},<{_after(last)}", torch)
    if "torch-tpu" not in packages:
        older = packages.get("torch-xla")
        instead = "" if older is None else f"torch-xla {older}, of the older line, is not used; "
        if fits:
            return f"but not the Python package torch-tpu: {instead}pip install torch-tpu libtpu"
        return (
            f"but not the Python package torch-tpu, and torch {torch} is none of those it is made "
            f'for: {instead}pip install "torch>={first},<{_after(last)}" torch-tpu libtpu'
        )
    if not fits:
        return (
            f"but torch-tpu {packages['torch-tpu']} is made for torch {first} to {last}, and this "
            f'is {torch}: pip install "torch>={first},<{_after(last)}"'
        )
    if "libtpu" not in packages:
        return "but not the Python package libtpu: pip install libtpu"
    if (older := packages.get("torch-xla")) is not None:
        return (
            f"but torch-xla {older} and torch-tpu are both installed, and one process cannot hold "
            "the chip for both: pip uninstall torch-xla"
        )
    return None


def _after(release: str) -> str:
    major, minor = release.split(".")
    return f"{major}.{int(minor) + 1}"


def _device(index: int, chip: sysfs.PciDevice) -> DeviceInfo:
    known = GENERATIONS[chip.device]
    return DeviceInfo(
        index=index,
        name=f"TPU {known.name}".rstrip(),
        total_memory=known.device_memory,
        arch=known.name,
        driver=chip.driver,
        traits={"pci": chip.address},
    )
