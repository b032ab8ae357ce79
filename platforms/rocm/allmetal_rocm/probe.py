"""Find AMD GPUs without opening one: PCI, the KFD topology in sysfs, /dev/kfd; and what torch was
built for, by its own file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from allmetal.platform import sysfs
from allmetal.platform.contract import Absent, Broken, DeviceInfo, Probe
from allmetal.platform.environment import TorchBuild
from allmetal_rocm.arch import ARCHS

VENDOR = 0x1002
_TOPOLOGY = "sys/class/kfd/kfd/topology/nodes"


def probe(root: Path, torch: TorchBuild | None) -> Probe:
    """Devices in the order of KFD's nodes, which is the runtime's, but for those without kernels,
    as a processor's own GPU beside a card."""
    classes = (sysfs.DISPLAY, sysfs.ACCELERATOR)
    cards = [d for d in sysfs.pci_devices(root, VENDOR) if d.base_class in classes]
    nodes = _gpu_nodes(root)
    if not cards and not nodes:
        return Absent(
            "no AMD GPU: no display device or accelerator of PCI vendor 1002 in "
            "/sys/bus/pci/devices, no GPU node in /sys/class/kfd/kfd/topology"
        )
    if not (root / "dev/kfd").exists():
        return Broken(_why_closed(cards))
    if not nodes:
        return Broken(
            f"AMD GPU at {cards[0].address}, but the amdgpu driver offers no compute node for "
            "it in /sys/class/kfd/kfd/topology: the GPU is too old for ROCm, or its firmware "
            "is missing"
        )
    reachable = [n for n in nodes if (root / f"dev/dri/renderD{n['drm_render_minor']}").exists()]
    if not reachable:
        return Broken(
            "there is an AMD GPU and /dev/kfd, but none of its /dev/dri/renderD* files; "
            "in a container: start it with --device /dev/kfd --device /dev/dri"
        )
    devices = [_device(root, node, cards) for node in reachable]
    driven = [d for d in devices if not d.arch or d.arch in ARCHS]
    if not driven:
        return Broken(
            f"{devices[0].name} at {devices[0].traits['pci']} is {devices[0].arch}; "
            f"there are kernels for {', '.join(ARCHS)}"
        )
    if lacking := _wrong_torch(torch):
        return Broken(f"{driven[0].name} at {driven[0].traits['pci']}, but {lacking}")
    return [replace(device, index=index) for index, device in enumerate(driven)]


def _wrong_torch(torch: TorchBuild | None) -> str | None:
    if torch is not None and "hip" in torch.built_for:
        return None
    found = f"torch {torch.version} was built without ROCm" if torch else "torch is not installed"
    return (
        f"{found}: pip install --force-reinstall torch --index-url "
        "https://download.pytorch.org/whl/rocmX.Y, X.Y being that of your ROCm "
        "(https://pytorch.org/get-started/locally)"
    )


def _why_closed(cards: list[sysfs.PciDevice]) -> str:
    where = f"AMD GPU at {cards[0].address}" if cards else "there is an AMD GPU"
    if cards and cards[0].driver != "amdgpu":
        bound = cards[0].driver or "none"
        return f"{where}, but its driver is {bound!r} and ROCm needs amdgpu"
    return (
        f"{where}, but no /dev/kfd; in a container: start it with "
        "--device /dev/kfd --device /dev/dri"
    )


def _gpu_nodes(root: Path) -> list[dict[str, int]]:
    """KFD nodes with compute units; CPUs are nodes too, without any."""
    nodes = []
    for name in sysfs.device_files(root, _TOPOLOGY, r"\d+"):
        lines = (sysfs.text(root / _TOPOLOGY / name / "properties") or "").splitlines()
        pairs = (line.split() for line in lines)
        node = {p[0]: int(p[1]) for p in pairs if len(p) == 2 and p[1].isdigit()}
        if node.get("simd_count", 0) > 0 and "drm_render_minor" in node:
            nodes.append(node)
    return nodes


def _device(root: Path, node: dict[str, int], cards: list[sysfs.PciDevice]) -> DeviceInfo:
    address = _address(node)
    card = next((c for c in cards if c.address == address), None)
    product = sysfs.text(card.folder / "product_name") if card else None
    memory = sysfs.number(card.folder / "mem_info_vram_total") if card else None
    return DeviceInfo(
        index=0,
        name=product or "AMD GPU",
        total_memory=memory or 0,
        arch=gfx_name(node.get("gfx_target_version", 0)),
        driver=sysfs.text(root / "sys/module/amdgpu/version") or "",
        traits={"pci": address},
    )


def _address(node: dict[str, int]) -> str:
    location, domain = node.get("location_id", 0), node.get("domain", 0)
    return f"{domain:04x}:{location >> 8:02x}:{location >> 3 & 31:02x}.{location & 7}"


def gfx_name(version: int) -> str:
    """KFD's major * 10000 + minor * 100 + stepping as the compiler spells it: 90402 is gfx942."""
    if not version:
        return ""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
