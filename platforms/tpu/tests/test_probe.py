from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from allmetal.platform.contract import Absent, Broken, DeviceInfo
from allmetal.testing.machine import add_pci_device, write_files
from allmetal_plugins.torch_needs import allmetal_torch_needs
from allmetal_tpu import TpuPlatform
from allmetal_tpu.probe import probe

GOOGLE, NETWORK_CARD = 0x1AE0, 0x0042
COMPLETE = {"torch": "2.13.0", "torch-tpu": "0.2.0", "libtpu": "0.0.52"}


def machine_with_four_chips(
    root: Path, *, device: int = 0x0063, node: str = "dev/vfio/", driver: str = "vfio-pci"
) -> None:
    for n in range(4):
        add_pci_device(
            root,
            f"0000:00:0{4 + n}.0",
            vendor=GOOGLE,
            device=device,
            base_class=0xFF,
            driver=driver,
        )
        write_files(root, {f"{node}{n}": ""})


def broken(root: Path, packages: Mapping[str, str] = COMPLETE) -> str:
    found = probe(root, packages)
    assert isinstance(found, Broken), found
    return found.reason


def devices(root: Path) -> list[DeviceInfo]:
    found = probe(root, COMPLETE)
    assert not isinstance(found, Absent | Broken), found
    return list(found)


def test_on_a_machine_without_tpu_the_reason_names_what_was_looked_for() -> None:
    found = TpuPlatform().probe()

    if not isinstance(found, Absent):
        pytest.skip("needs a machine without TPU")
    for looked_for in ("TPU", "1ae0", "/sys/bus/pci/devices"):
        assert looked_for in found.reason


@pytest.mark.parametrize(
    ("device", "node", "generation", "gib"),
    [
        (0x005E, "dev/accel", "v4", 32),
        (0x0062, "dev/vfio/", "v5p", 95),
        (0x0063, "dev/vfio/", "v5e", 16),
        (0x006F, "dev/vfio/", "v6e", 32),
    ],
)
def test_chips_are_found_with_their_generation_and_memory(
    tmp_path: Path, device: int, node: str, generation: str, gib: int
) -> None:
    machine_with_four_chips(tmp_path, device=device, node=node)

    found = devices(tmp_path)

    assert [(n, f"TPU {generation}", generation, f"0000:00:0{4 + n}.0") for n in range(4)] == [
        (d.index, d.name, d.arch, d.traits["pci"]) for d in found
    ]
    assert {d.total_memory for d in found} == {gib << 30}


def test_a_chip_of_two_devices_is_found_twice_with_half_its_memory(tmp_path: Path) -> None:
    machine_with_four_chips(tmp_path, device=0x0076)

    found = devices(tmp_path)

    assert [d.index for d in found] == list(range(8))
    assert {d.total_memory for d in found} == {96 << 30}


def test_googles_network_card_is_no_tpu(tmp_path: Path) -> None:
    add_pci_device(tmp_path, "0000:00:01.0", vendor=GOOGLE, device=NETWORK_CARD, base_class=0x02)

    assert isinstance(probe(tmp_path, COMPLETE), Absent)


def test_a_chip_without_device_file_is_broken(tmp_path: Path) -> None:
    machine_with_four_chips(tmp_path, node="elsewhere/")

    reason = broken(tmp_path)

    assert "/dev/vfio" in reason
    assert "--privileged" in reason


def test_a_chip_without_driver_is_told_apart_from_one_that_a_container_hides(
    tmp_path: Path,
) -> None:
    machine_with_four_chips(tmp_path, node="elsewhere/", driver="")

    assert "modprobe vfio-pci" in broken(tmp_path)


def test_a_generation_that_torchtpu_does_not_run_on_is_broken(tmp_path: Path) -> None:
    machine_with_four_chips(tmp_path, device=0x0027, node="dev/accel")

    assert "v4 and later, and this is v2 or v3" in broken(tmp_path)


@pytest.mark.parametrize(
    ("packages", "said"),
    [
        ({}, ["not the Python package torch:", "pip install torch torch-tpu libtpu"]),
        ({"torch": "2.13.0+cpu"}, ["torch-tpu", "pip install torch-tpu libtpu"]),
        (
            {"torch": "2.9.1", "torch-xla": "2.9.0"},
            ["torch-xla 2.9.0, of the older line", 'pip install "torch>=2.11,<2.16" torch-tpu'],
        ),
        (
            {"torch": "2.13.0", "torch-xla": "2.9.0"},
            ["torch-xla 2.9.0, of the older line", "pip install torch-tpu libtpu"],
        ),
        (
            {**COMPLETE, "torch": "2.9.1"},
            ["made for torch 2.11 to 2.15, and this is 2.9.1", 'pip install "torch>=2.11,<2.16"'],
        ),
        ({**COMPLETE, "torch": "2.16.0"}, ["made for torch 2.11 to 2.15, and this is 2.16.0"]),
        ({"torch": "2.13.0", "torch-tpu": "0.2.0"}, ["pip install libtpu"]),
        ({**COMPLETE, "torch-xla": "2.9.0"}, ["pip uninstall torch-xla"]),
    ],
)
def test_what_of_the_software_is_missing_or_does_not_fit_is_said(
    tmp_path: Path, packages: Mapping[str, str], said: list[str]
) -> None:
    machine_with_four_chips(tmp_path)

    reason = broken(tmp_path, packages)

    assert reason.startswith("TPU at 0000:00:04.0, but ")
    for words in said:
        assert words in reason


@pytest.mark.parametrize("torch", ["2.11.0", "2.13.0+cpu", "2.15.1"])
def test_the_torches_that_torchtpu_is_made_for_are_taken(tmp_path: Path, torch: str) -> None:
    machine_with_four_chips(tmp_path)

    assert len(list(probe(tmp_path, {**COMPLETE, "torch": torch}))) == 4  # type: ignore[arg-type]


def test_the_doctor_asks_for_what_the_probe_asks_for(tmp_path: Path) -> None:
    (need,) = (need for need in allmetal_torch_needs() if need.platform == "tpu")
    machine_with_four_chips(tmp_path)

    assert need.extension in COMPLETE
    assert broken(tmp_path, {"torch": "2.13.0"}).endswith(need.install)
