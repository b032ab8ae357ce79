from __future__ import annotations

import sys
from pathlib import Path

import pytest

from allmetal.errors import PlatformError
from allmetal.platform.contract import Absent, Broken
from allmetal.testing.machine import add_pci_device, write_files
from allmetal_ascend import AscendPlatform
from allmetal_ascend.software import Packages

HUAWEI, ACCELERATOR, NETWORK = 0x19E5, 0x12, 0x02
DRIVER = "usr/local/Ascend/driver"
TOOLKIT = "usr/local/Ascend/ascend-toolkit/latest"
INSTALLED = Packages(torch="2.13.0+cpu", torch_npu="2.13.0", folders=[f"{TOOLKIT}/lib64"])


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
            f"{TOOLKIT}/lib64/libascendcl.so": "",
            f"{TOOLKIT}/x86_64-linux/ascend_toolkit_install.info": "package=x\nversion=8.5.0\n",
        },
    )


def platform_on(root: Path, packages: Packages = INSTALLED) -> AscendPlatform:
    return AscendPlatform(root, lambda: packages)


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

    found = platform_on(tmp_path).probe()

    assert not isinstance(found, Absent | Broken)
    assert [(n, "Ascend 910B", "910B", "25.2.0", f"/dev/davinci{n}") for n in range(2)] == [
        (d.index, d.name, d.arch, d.driver, d.traits["node"]) for d in found
    ]
    assert [("2.13.0", "8.5.0")] * 2 == [(d.traits["torch_npu"], d.traits["cann"]) for d in found]


def test_a_container_that_was_given_one_npu_sees_one(tmp_path: Path) -> None:
    machine_with_two_npus(tmp_path)
    (tmp_path / "dev/davinci0").unlink()

    found = platform_on(tmp_path).probe()

    assert not isinstance(found, Absent | Broken)
    assert [(0, "/dev/davinci1")] == [(d.index, d.traits["node"]) for d in found]


def test_the_vendors_network_cards_are_no_npus(tmp_path: Path) -> None:
    add_pci_device(tmp_path, "0000:05:00.0", vendor=HUAWEI, device=0x0200, base_class=NETWORK)

    assert isinstance(platform_on(tmp_path).probe(), Absent)


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

    found = platform_on(tmp_path).probe()

    assert isinstance(found, Broken)
    assert told in found.reason


def test_an_npu_without_any_device_file_is_broken(tmp_path: Path) -> None:
    add_pci_device(tmp_path, "0000:01:00.0", vendor=HUAWEI, device=0xD803, base_class=ACCELERATOR)

    found = platform_on(tmp_path).probe()

    assert isinstance(found, Broken)
    assert "0000:01:00.0" in found.reason
    assert "/dev/davinci0" in found.reason


@pytest.mark.parametrize(
    ("packages", "told"),
    [
        (Packages(), ("torch is not installed", 'pip install "torch==2.13.*"')),
        (
            Packages(torch="2.12.1+cpu"),
            ("torch_npu is not installed beside torch 2.12.1", 'pip install "torch-npu==2.12.*"'),
        ),
        (
            Packages(torch="2.13.0", torch_npu="2.9.0.post1"),
            ("torch_npu 2.9.0.post1 is not for torch 2.13.0", 'pip install "torch-npu==2.13.*"'),
        ),
        (
            Packages(torch="2.13.0", torch_npu="2.13.0"),
            ("not in the loader's path", "source /usr/local/Ascend/ascend-toolkit/set_env.sh"),
        ),
    ],
)
def test_what_of_the_software_is_missing_is_named_with_what_to_type(
    tmp_path: Path, packages: Packages, told: tuple[str, ...]
) -> None:
    machine_with_two_npus(tmp_path)

    found = platform_on(tmp_path, packages).probe()

    assert isinstance(found, Broken)
    assert all(words in found.reason for words in ("there is an Ascend 910B, but", *told))


def test_a_driver_without_the_toolkit_is_broken(tmp_path: Path) -> None:
    machine_with_two_npus(tmp_path)
    (tmp_path / f"{TOOLKIT}/lib64/libascendcl.so").unlink()

    found = platform_on(tmp_path).probe()

    assert isinstance(found, Broken)
    assert "no CANN toolkit (no libascendcl.so" in found.reason
    assert "install CANN 8.5" in found.reason


@pytest.mark.parametrize("version", ["8.0.RC3", "7.0.0", "8.3.RC1"])
def test_a_toolkit_that_is_too_old_is_named(tmp_path: Path, version: str) -> None:
    machine_with_two_npus(tmp_path)
    info = tmp_path / f"{TOOLKIT}/x86_64-linux/ascend_toolkit_install.info"
    info.write_text(f"package=x\nversion={version}\n")

    found = platform_on(tmp_path).probe()

    assert isinstance(found, Broken)
    assert f"CANN {version} is too old for torch_npu 2.13.0: install CANN 8.5" in found.reason


def test_a_toolkit_that_says_no_version_is_taken(tmp_path: Path) -> None:
    machine_with_two_npus(tmp_path)
    (tmp_path / f"{TOOLKIT}/x86_64-linux/ascend_toolkit_install.info").unlink()

    found = platform_on(tmp_path).probe()

    assert not isinstance(found, Absent | Broken)
    assert "" == found[0].traits["cann"]


def test_without_torch_npu_a_found_device_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine_with_two_npus(tmp_path)
    platform = platform_on(tmp_path)
    found = platform.probe()
    assert not isinstance(found, Absent | Broken)
    monkeypatch.setitem(sys.modules, "torch_npu", None)  # an import of it fails

    with pytest.raises(PlatformError, match="torch_npu does not load") as error:
        platform.open(found[0])

    assert "set_env.sh" in (error.value.hint or "")
