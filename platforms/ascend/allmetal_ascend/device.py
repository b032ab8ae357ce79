"""An Ascend NPU as torch_npu drives it."""

from __future__ import annotations

from importlib import import_module

import torch

from allmetal.errors import PlatformError
from allmetal.platform.contract import DeviceInfo
from allmetal_ascend import chips
from allmetal_ascend.advice import advise
from allmetal_triton.device.collectives import TorchCollectives
from allmetal_triton.device.gpu import TorchGPU, TorchModule

NPU = TorchModule(
    type="npu",
    graph=lambda: torch.npu.NPUGraph(),  # type: ignore[attr-defined]
    capture={"capture_error_mode": "thread_local"},
)


def open_device(info: DeviceInfo) -> TorchGPU:
    """Raises PlatformError where torch_npu cannot drive the device, saying what to mend."""
    _load(info)
    api = NPU.api
    count: int = api.device_count()
    if info.index >= count:
        raise PlatformError(
            f"{info.name} {info.index} cannot be used: torch_npu sees {count} of the devices",
            hint="ASCEND_RT_VISIBLE_DEVICES may leave it out; npu-smi info shows who uses it",
        )
    name: str = api.get_device_name(info.index)
    if chips.of(name) is None:
        raise PlatformError(
            f"{info.name} is an {name}; there are kernels for {', '.join(chips.CHIPS)}",
            hint="--platform cpu",
        )
    device = f"npu:{info.index}"
    return TorchGPU(
        info,
        NPU,
        info.index,
        advise=advise,
        versions={
            "torch_npu": info.traits.get("torch_npu", ""),
            "cann": info.traits.get("cann", ""),
            "driver": info.driver,
        },
        communicator=TorchCollectives("hccl", device),
    )


def _load(info: DeviceInfo) -> None:
    """torch may have loaded it already, as an extension; that can be switched off."""
    try:
        import_module("torch_npu")
    except (ImportError, RuntimeError) as error:  # its own words, or the dynamic loader's
        raise PlatformError(
            f"{info.name} cannot be used: torch_npu does not load: {str(error).splitlines()[0]}",
            hint="source /usr/local/Ascend/ascend-toolkit/set_env.sh",
        ) from error
    # Weights may lie in the matrix unit's own order of elements.
    NPU.api.config.allow_internal_format = True
