"""Find Ascend NPUs without opening one: PCI, /dev/davinci*, the driver's files, and the software
that drives them."""

from __future__ import annotations

from pathlib import Path

from allmetal.platform import sysfs
from allmetal.platform.contract import Absent, Broken, DeviceInfo, Probe
from allmetal_ascend.software import Packages, cann_version, what_is_missing

VENDOR = 0x19E5
CHIPS = {
    0xD100: "310",
    0xD500: "310P",
    0xD801: "910",
    0xD802: "910B",
    0xD803: "910_93",
}
"""PCI device id -> the name that the vendor's tools use."""
_DRIVER = "usr/local/Ascend/driver"
_HAL = "libascend_hal.so"


def probe(root: Path, packages: Packages) -> Probe:
    """Devices in the order of /dev/davinci*, which is the runtime's; a chip of two dies has two."""
    cards = [d for d in sysfs.pci_devices(root, VENDOR) if d.base_class == sysfs.ACCELERATOR]
    nodes = sysfs.device_files(root, "dev", r"davinci\d+")
    if not cards and not nodes:
        return Absent(
            "no Ascend NPU: no processing accelerator of PCI vendor 19e5 in "
            "/sys/bus/pci/devices, no /dev/davinci0"
        )
    if not nodes or not (root / "dev/davinci_manager").exists():
        where = f"Ascend NPU at {cards[0].address}" if cards else "there is an Ascend NPU"
        lacking = "/dev/davinci_manager" if nodes else "/dev/davinci0"
        return Broken(
            f"{where}, but no {lacking}: install the Ascend driver; in a container: start it with "
            "--device /dev/davinci0 --device /dev/davinci_manager --device /dev/devmm_svm "
            "--device /dev/hisi_hdc"
        )
    if not sysfs.has_library(root, _HAL, [f"{_DRIVER}/lib64/driver", f"{_DRIVER}/lib64"]):
        return Broken(
            f"there is an Ascend NPU, but not the driver's library {_HAL}; in a container: mount "
            f"/{_DRIVER} into it"
        )
    arch = CHIPS.get(cards[0].device, "") if cards else ""
    if missing := what_is_missing(root, packages):
        return Broken(f"there is {f'an Ascend {arch}' if arch else 'an Ascend NPU'}, but {missing}")
    traits = {"torch_npu": packages.torch_npu, "cann": cann_version(root, packages.folders)}
    return [
        DeviceInfo(
            index=index,
            name=f"Ascend {arch}".rstrip() if arch else "Ascend NPU",
            total_memory=0,  # only the opened driver tells
            arch=arch,
            driver=_driver_version(root),
            traits={"node": f"/dev/{node}", **traits},
        )
        for index, node in enumerate(nodes)
    ]


def _driver_version(root: Path) -> str:
    lines = (sysfs.text(root / _DRIVER / "version.info") or "").splitlines()
    facts = dict(line.split("=", 1) for line in lines if "=" in line)
    return facts.get("Version", "")
