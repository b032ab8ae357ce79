"""The ascend platform on a machine of files, over libraries that stand in for CANN."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import standin_cann
from standin_cann.emulator import Emulator
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from allmetal.platform.contract import (
    DEFAULT_OPTIONS,
    Absent,
    AnyKernel,
    Broken,
    Device,
    DeviceInfo,
    OpenOptions,
    Probe,
)
from allmetal.testing.machine import add_pci_device, write_files
from allmetal_ascend import AscendPlatform, chips
from allmetal_ascend.ops.attention import NpuAttention
from allmetal_ascend.ops.dtypes import FLOAT
from allmetal_ascend.software import Packages

DRIVER = "usr/local/Ascend/driver"
CANN = "usr/local/Ascend/ascend-toolkit/latest/lib64"


@cache
def machine(num_devices: int = 1) -> Path:
    root = Path(tempfile.mkdtemp(prefix="npus-"))
    for n in range(num_devices):
        add_pci_device(
            root, f"0000:{n + 1:02x}:00.0", vendor=0x19E5, device=0xD802, base_class=0x12
        )
        write_files(root, {f"dev/davinci{n}": ""})
    write_files(
        root,
        {
            "dev/davinci_manager": "",
            f"{DRIVER}/version.info": "Version=25.2.0\n",
            f"{DRIVER}/lib64/driver/libascend_hal.so": "",
            f"{CANN}/libascendcl.so": "",
            "usr/local/Ascend/ascend-toolkit/latest/x86_64-linux/ascend_toolkit_install.info": (
                "version=8.5.0\n"
            ),
        },
    )
    return root


def packages() -> Packages:
    return Packages(torch="2.13.0", torch_npu="2.13.0", folders=[CANN])


class EmulatedAscend(AscendPlatform):
    """Opens its device over the stand-ins, in whichever process.  With `float32`, attention takes
    that too, which no chip does, so that tokens can be compared exactly."""

    def __init__(self, num_devices: int = 1, *, float32: bool = False) -> None:
        super().__init__(machine(num_devices), packages)
        self._num_devices, self._float32 = num_devices, float32

    def probe(self) -> Probe:
        """As its devices say what a test on them proves."""
        found = super().probe()
        assert not isinstance(found, Absent | Broken), found
        return [replace(d, traits={**d.traits, "evidence": "emulated"}) for d in found]

    def open(self, device: DeviceInfo, options: OpenOptions = DEFAULT_OPTIONS) -> Device:
        standin_cann.load()
        os.environ["STANDIN_DEVICES"] = str(self._num_devices)
        opened = super().open(device, options)
        if not any(isinstance(mode, Emulator) for mode in _get_current_dispatch_mode_stack()):
            Emulator(strict=not self._float32).__enter__()  # as long as this process
        return opened

    def kernels(self, device: DeviceInfo) -> Mapping[str, Sequence[AnyKernel]]:
        kernels = dict(super().kernels(device))
        if self._float32:
            kernels["attention"] = (NpuAttention(chips.A2, dtypes=FLOAT),)
        return kernels
