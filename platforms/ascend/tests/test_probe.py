from __future__ import annotations

from pathlib import Path

import pytest

from allmetal.errors import PlatformError
from allmetal.platform.contract import Absent, Broken, Unsupported
from allmetal.testing.machine import add_pci_device, write_files
from allmetal_ascend import AscendPlatform

HUAWEI, ACCELERATOR, NETWORK = 0x19E5, 0x12, 0x02
DRIVER = "usr/local/Ascend/driver"


def machine_with_two_npus(root: Path) -> None:
    for n in range(2):
        add_pci_device(
            root,
            f"0000:{n + 1:02x}:00.0",
            vendor=HUAWEI,
            device=0xD802,
            base_class=ACCELERATOR,
            driver="devdrv_device_driver",
        )
        write_files(root, {f"dev/davinci{n}": ""})
    write_files(
        root,
        {
            "dev/davinci_manager": "",
            f"{DRIVER}/version.info": "Version=25.2.0\nascendhal_version=7.35.23\n",
            f"{DRIVER}/lib64/driver/libascend_hal.so": "",
        },
    )


@pytest.mark.skipif(
    Path("/dev/davinci_manager").exists(), reason="needs a machine without Ascend NPU"
)
def test_on_a_machine_without_npu_the_reason_names_what_was_looked_for() -> None:
    found = AscendPlatform().probe()

    assert isinstance(found, Absent)
    for looked_for in ("Ascend", "19e5", "/sys/bus/pci/devices", "/dev/davinci0"):
        assert looked_for in found.reason


def test_devices_are_found_with_name_and_driver(tmp_path: Path) -> None:
    machine_with_two_npus(tmp_path)

    found = AscendPlatform(tmp_path).probe()

    assert not isinstance(found, Absent | Broken)
    assert [(n, "Ascend 910B", "910B", "25.2.0", f"/dev/davinci{n}") for n in range(2)] == [
        (d.index, d.name, d.arch, d.driver, d.traits["node"]) for d in found
    ]


def test_a_container_that_was_given_one_npu_sees_one(tmp_path: Path) -> None:
    machine_with_two_npus(tmp_path)
    (tmp_path / "dev/davinci0").unlink()

    found = AscendPlatform(tmp_path).probe()

    assert not isinstance(found, Absent | Broken)
    assert [(0, "/dev/davinci1")] == [(d.index, d.traits["node"]) for d in found]


def test_the_vendors_network_cards_are_no_npus(tmp_path: Path) -> None:
    add_pci_device(tmp_path, "0000:05:00.0", vendor=HUAWEI, device=0x0200, base_class=NETWORK)

    assert isinstance(AscendPlatform(tmp_path).probe(), Absent)


@pytest.mark.parametrize(
    ("removed", "told"),
    [
        ("dev/davinci_manager", "no /dev/davinci_manager"),
        (f"{DRIVER}/lib64/driver/libascend_hal.so", "libascend_hal.so"),
    ],
)
def test_what_bars_the_way_to_an_npu_is_named(tmp_path: Path, removed: str, told: str) -> None:
    machine_with_two_npus(tmp_path)
    (tmp_path / removed).unlink()

    found = AscendPlatform(tmp_path).probe()

    assert isinstance(found, Broken)
    assert told in found.reason


def test_an_npu_without_any_device_file_is_broken(tmp_path: Path) -> None:
    add_pci_device(tmp_path, "0000:01:00.0", vendor=HUAWEI, device=0xD803, base_class=ACCELERATOR)

    found = AscendPlatform(tmp_path).probe()

    assert isinstance(found, Broken)
    assert "0000:01:00.0" in found.reason
    assert "/dev/davinci0" in found.reason


def test_a_found_device_is_not_opened_and_no_feature_is_claimed(tmp_path: Path) -> None:
    machine_with_two_npus(tmp_path)
    platform = AscendPlatform(tmp_path)
    found = platform.probe()
    assert not isinstance(found, Absent | Broken)

    with pytest.raises(PlatformError, match="Ascend 910B was found, but") as error:
        platform.open(found[0])

    assert error.value.hint == "--platform cpu"
    assert all(isinstance(c, Unsupported) for c in platform.capabilities(found[0]).values())
    assert platform.kernels(found[0]) == {}
