"""Find Google TPUs without opening one: PCI, /dev/accel* or /dev/vfio, the libtpu package."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

from allmetal.platform import sysfs
from allmetal.platform.contract import Absent, Broken, DeviceInfo, Probe

VENDOR = 0x1AE0
GENERATIONS = {
    0x0027: "v2 or v3",
    0x0056: "",  # in the public lists without a name
    0x005E: "v4",
    0x0062: "v5p",
    0x0063: "v5e",
    0x006F: "v6e",
    0x0076: "v7x",
}
"""PCI device id -> generation.  Google's network cards share the vendor id, so a list it is."""


def libtpu_is_installed() -> bool:
    return importlib.util.find_spec("libtpu") is not None


def probe(root: Path, has_runtime: Callable[[], bool] = libtpu_is_installed) -> Probe:
    """Chips in bus order."""
    chips = [d for d in sysfs.pci_devices(root, VENDOR) if d.device in GENERATIONS]
    if not chips:
        return Absent(
            "no TPU: no chip of PCI vendor 1ae0 with a known TPU device id in /sys/bus/pci/devices"
        )
    # v2 to v4 have a driver of their own; later generations are handed over through VFIO.
    nodes = sysfs.device_files(root, "dev", r"accel\d+") + sysfs.device_files(
        root, "dev/vfio", r"\d+"
    )
    if not nodes:
        return Broken(
            f"TPU at {chips[0].address}, but neither /dev/accel* nor /dev/vfio/*; "
            "in a container: start it with --privileged, or ask the cluster for google.com/tpu"
        )
    if not has_runtime():
        return Broken(
            f"TPU at {chips[0].address}, but not the Python package libtpu: pip install libtpu"
        )
    return [_device(index, chip) for index, chip in enumerate(chips)]


def _device(index: int, chip: sysfs.PciDevice) -> DeviceInfo:
    generation = GENERATIONS[chip.device]
    # sysfs does not tell the memory's size.
    return DeviceInfo(
        index=index,
        name=f"TPU {generation}".rstrip(),
        total_memory=0,
        arch=generation,
        driver=chip.driver,
        traits={"pci": chip.address},
    )
