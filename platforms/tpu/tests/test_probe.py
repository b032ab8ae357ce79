from __future__ import annotations

from pathlib import Path

import pytest

from allmetal.errors import PlatformError
from allmetal.platform.contract import Absent, Broken, DeviceInfo, Unsupported
from allmetal.testing.machine import add_pci_device, write_files
from allmetal_tpu import TpuPlatform
from allmetal_tpu.probe import probe

GOOGLE, NETWORK_CARD = 0x1AE0, 0x0042


def machine_with_four_chips(root: Path, *, device: int = 0x0063, node: str = "dev/vfio/") -> None:
    for n in range(4):
        add_pci_device(
            root,
            f"0000:00:0{4 + n}.0",
            vendor=GOOGLE,
            device=device,
            base_class=0xFF,
            driver="vfio-pci",
        )
        write_files(root, {f"{node}{n}": ""})


def test_on_a_machine_without_tpu_the_reason_names_what_was_looked_for() -> None:
    found = TpuPlatform().probe()

    if not isinstance(found, Absent):
        pytest.skip("needs a machine without TPU")
    for looked_for in ("TPU", "1ae0", "/sys/bus/pci/devices"):
        assert looked_for in found.reason


@pytest.mark.parametrize(
    ("device", "node", "generation"),
    [(0x005E, "dev/accel", "v4"), (0x0063, "dev/vfio/", "v5e"), (0x006F, "dev/vfio/", "v6e")],
)
def test_chips_are_found_with_their_generation(
    tmp_path: Path, device: int, node: str, generation: str
) -> None:
    machine_with_four_chips(tmp_path, device=device, node=node)

    found = probe(tmp_path, lambda: True)

    assert not isinstance(found, Absent | Broken)
    assert [(n, f"TPU {generation}", generation, f"0000:00:0{4 + n}.0") for n in range(4)] == [
        (d.index, d.name, d.arch, d.traits["pci"]) for d in found
    ]


def test_googles_network_card_is_no_tpu(tmp_path: Path) -> None:
    add_pci_device(tmp_path, "0000:00:01.0", vendor=GOOGLE, device=NETWORK_CARD, base_class=0x02)

    assert isinstance(probe(tmp_path, lambda: True), Absent)


def test_a_chip_without_device_file_is_broken(tmp_path: Path) -> None:
    machine_with_four_chips(tmp_path, node="elsewhere/")

    found = probe(tmp_path, lambda: True)

    assert isinstance(found, Broken)
    assert "/dev/vfio" in found.reason


def test_a_missing_runtime_is_broken_and_says_what_to_install(tmp_path: Path) -> None:
    machine_with_four_chips(tmp_path)

    found = probe(tmp_path, lambda: False)

    assert isinstance(found, Broken)
    assert "pip install libtpu" in found.reason


def test_a_found_device_is_not_opened_and_no_feature_is_claimed() -> None:
    chip = DeviceInfo(index=0, name="TPU v5e", total_memory=0, arch="v5e")
    platform = TpuPlatform()

    with pytest.raises(PlatformError, match="TPU v5e was found, but") as error:
        platform.open(chip)

    assert error.value.hint == "--platform cpu"
    assert all(isinstance(c, Unsupported) for c in platform.capabilities(chip).values())
    assert platform.kernels(chip) == {}
