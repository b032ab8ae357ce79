from __future__ import annotations

from pathlib import Path

import pytest

from allmetal.platform.contract import Absent, Broken
from allmetal.testing.machine import add_pci_device, write_files
from allmetal_cuda import CudaPlatform, nvml
from allmetal_cuda.nvml import Gpu

NVIDIA, DISPLAY, AUDIO = 0x10DE, 0x03, 0x04


def nothing() -> list[Gpu]:
    """A management library that cannot be asked."""
    return []


def machine_with_two_gpus(root: Path) -> None:
    for minor, bus in enumerate(("18", "2a")):
        address = f"0000:{bus}:00.0"
        add_pci_device(
            root, address, vendor=NVIDIA, device=0x2335, base_class=DISPLAY, driver="nvidia"
        )
        information = f"Model: \t\t NVIDIA H200\nIRQ:   \t\t 1\nDevice Minor: \t {minor}\n"
        write_files(
            root,
            {
                f"proc/driver/nvidia/gpus/{address}/information": information,
                f"dev/nvidia{minor}": "",
            },
        )
    version = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Fri Jan 24 2025\n"
    write_files(
        root,
        {
            "dev/nvidiactl": "",
            "proc/driver/nvidia/version": version,
            "etc/ld.so.cache": "\0libcuda.so.1\0",
        },
    )


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="needs a machine without NVIDIA GPU")
def test_on_a_machine_without_gpu_the_reason_names_what_was_looked_for() -> None:
    found = CudaPlatform().probe()

    assert isinstance(found, Absent)
    for looked_for in ("NVIDIA", "10de", "/sys/bus/pci/devices", "/dev/nvidia0"):
        assert looked_for in found.reason


def test_devices_are_found_with_name_driver_and_address(tmp_path: Path) -> None:
    machine_with_two_gpus(tmp_path)

    found = CudaPlatform(tmp_path, nothing).probe()

    assert not isinstance(found, Absent | Broken)
    assert [(0, "NVIDIA H200", "570.86.15"), (1, "NVIDIA H200", "570.86.15")] == [
        (d.index, d.name, d.driver) for d in found
    ]
    assert found[1].traits["pci"] == "0000:2a:00.0"


def test_the_open_kernel_modules_version_is_read_too(tmp_path: Path) -> None:
    machine_with_two_gpus(tmp_path)
    line = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n"
    write_files(tmp_path, {"proc/driver/nvidia/version": line})

    found = CudaPlatform(tmp_path, nothing).probe()

    assert not isinstance(found, Absent | Broken)
    assert found[0].driver == "580.95.05"


def test_a_gpu_whose_device_file_is_not_in_the_container_is_left_out(tmp_path: Path) -> None:
    machine_with_two_gpus(tmp_path)
    (tmp_path / "dev/nvidia0").unlink()

    found = CudaPlatform(tmp_path, nothing).probe()

    assert not isinstance(found, Absent | Broken)
    assert ["0000:2a:00.0"] == [d.traits["pci"] for d in found]


def test_a_sandbox_that_hides_proc_still_shows_its_gpus(tmp_path: Path) -> None:
    write_files(tmp_path, {"dev/nvidia3": "", "usr/lib/x86_64-linux-gnu/libcuda.so.1": ""})

    found = CudaPlatform(tmp_path, nothing).probe()

    assert not isinstance(found, Absent | Broken)
    assert ["/dev/nvidia3"] == [d.traits["node"] for d in found]


def test_wsl_is_recognised_by_its_driver_folder(tmp_path: Path) -> None:
    write_files(tmp_path, {"dev/dxg": "", "usr/lib/wsl/lib/libcuda.so.1": ""})

    found = CudaPlatform(tmp_path, nothing).probe()

    assert not isinstance(found, Absent | Broken)
    assert len(found) == 1


def test_the_sound_function_of_a_card_is_no_gpu(tmp_path: Path) -> None:
    add_pci_device(tmp_path, "0000:18:00.1", vendor=NVIDIA, device=1, base_class=AUDIO)

    assert isinstance(CudaPlatform(tmp_path, nothing).probe(), Absent)


@pytest.mark.parametrize(
    ("driver", "told"),
    [("", "has no driver"), ("nouveau", "'nouveau'"), ("nvidia", "--gpus all")],
)
def test_a_gpu_that_cannot_be_reached_is_broken_and_says_why(
    tmp_path: Path, driver: str, told: str
) -> None:
    add_pci_device(
        tmp_path, "0000:18:00.0", vendor=NVIDIA, device=1, base_class=DISPLAY, driver=driver
    )

    found = CudaPlatform(tmp_path, nothing).probe()

    assert isinstance(found, Broken)
    assert "0000:18:00.0" in found.reason
    assert told in found.reason


def test_a_missing_driver_library_is_named(tmp_path: Path) -> None:
    machine_with_two_gpus(tmp_path)
    (tmp_path / "etc/ld.so.cache").unlink()

    found = CudaPlatform(tmp_path, nothing).probe()

    assert isinstance(found, Broken)
    assert "libcuda.so.1" in found.reason


def test_the_management_library_tells_sizes_and_capabilities(tmp_path: Path) -> None:
    machine_with_two_gpus(tmp_path)
    gpu = Gpu(name="H", address="0000:18:00.0", capability=(9, 0), total_memory=141 << 30)

    found = CudaPlatform(tmp_path, lambda: [gpu]).probe()

    assert not isinstance(found, Absent | Broken)
    assert [("H", "sm_90", 141 << 30, "570.86.15")] == [
        (d.name, d.arch, d.total_memory, d.driver) for d in found
    ]


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="needs a machine without NVIDIA GPU")
def test_without_the_management_library_there_is_nothing_to_tell() -> None:
    assert nvml.gpus() == []
