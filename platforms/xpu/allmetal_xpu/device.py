"""An Intel GPU as torch drives it, through `torch.xpu`."""

from __future__ import annotations

from typing import Any

import torch

from allmetal.errors import PlatformError
from allmetal.platform.contract import DeviceInfo
from allmetal_triton.device.collectives import TorchCollectives
from allmetal_triton.device.gpu import TorchGPU, TorchModule
from allmetal_triton.device.launcher import check_launcher
from allmetal_xpu.advice import advise

XPU = TorchModule(type="xpu", graph=getattr(torch.xpu, "XPUGraph", None))


def open_device(info: DeviceInfo) -> TorchGPU:
    """Raises PlatformError where torch cannot drive the device, saying what to mend."""
    if not torch.xpu._is_compiled():
        raise PlatformError(
            f"{info.name} cannot be used: torch {torch.__version__} was built without XPU",
            hint="install an XPU build of torch: https://pytorch.org/get-started/locally",
        )
    try:
        torch.xpu.init()
        count = torch.xpu.device_count()
    except RuntimeError as error:  # torch's words, e.g. that Level Zero is not there
        raise PlatformError(
            f"{info.name} cannot be used: {str(error).splitlines()[0]}",
            hint="install Intel's compute runtime (Level Zero)",
        ) from error
    ordinal = _ordinal(info, count)
    check_launcher(info.name)
    facts: Any = torch.xpu.get_device_properties(ordinal)
    return TorchGPU(
        info,
        XPU,
        ordinal,
        advise=advise,
        versions={"runtime": str(facts.driver_version), "driver": info.driver},
        communicator=TorchCollectives("xccl", f"xpu:{ordinal}"),
    )


def _ordinal(info: DeviceInfo, count: int) -> int:
    """torch tells no PCI address: devices are taken to come in its order, the bus's."""
    if info.index >= count:
        raise PlatformError(
            f"{info.name} is hidden from this process: torch sees {count} Intel GPUs",
            hint="ZE_AFFINITY_MASK or ONEAPI_DEVICE_SELECTOR leaves it out",
        )
    return info.index
