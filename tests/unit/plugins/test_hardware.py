"""Hardware is told from files, for each platform there is a folder for."""

from __future__ import annotations

from pathlib import Path

import pytest

from allmetal.platform.sysfs import ACCELERATOR, DISPLAY
from allmetal.testing.machine import add_pci_device, write_files
from allmetal_plugins.hardware import hints


@pytest.mark.parametrize(
    ("platform", "vendor", "device", "base_class"),
    [
        ("cuda", 0x10DE, 0x2330, DISPLAY),
        ("rocm", 0x1002, 0x74A1, ACCELERATOR),
        ("rocm", 0x1002, 0x744C, DISPLAY),
        ("xpu", 0x8086, 0xE20B, DISPLAY),
        ("tpu", 0x1AE0, 0x0063, 0xFF),
        ("ascend", 0x19E5, 0xD802, ACCELERATOR),
    ],
)
def test_a_card_is_seen(
    tmp_path: Path, platform: str, vendor: int, device: int, base_class: int
) -> None:
    for address in ("0000:17:00.0", "0000:65:00.0"):
        add_pci_device(tmp_path, address, vendor=vendor, device=device, base_class=base_class)
    (hint,) = hints(tmp_path)
    assert hint.platform == platform
    assert hint.seen.endswith("at PCI 0000:17:00.0")


@pytest.mark.parametrize(("name", "platform"), [("nvidia0", "cuda"), ("davinci3", "ascend")])
def test_a_device_file_is_enough_in_a_container(tmp_path: Path, name: str, platform: str) -> None:
    write_files(tmp_path, {f"dev/{name}": ""})
    assert [platform] == [h.platform for h in hints(tmp_path)]


def test_what_is_no_accelerator_gives_no_hint(tmp_path: Path) -> None:
    assert hints(tmp_path) == []
    audio, network = 0x04, 0x02
    add_pci_device(tmp_path, "0000:01:00.1", vendor=0x10DE, device=1, base_class=audio)
    add_pci_device(tmp_path, "0000:02:00.0", vendor=0x1AE0, device=0x42, base_class=network)
    add_pci_device(tmp_path, "0000:03:00.0", vendor=0x19E5, device=0x200, base_class=network)
    add_pci_device(tmp_path, "0000:00:02.0", vendor=0x8086, device=0x4680, base_class=DISPLAY)
    inside = add_pci_device(
        tmp_path, "0000:0c:00.0", vendor=0x1002, device=0x164E, base_class=DISPLAY
    )
    write_files(inside, {"mem_info_vram_total": str(512 << 20)})
    assert hints(tmp_path) == []
