"""An AMD GPU as torch drives it: through `torch.cuda`, which is HIP's in a build for ROCm."""

from __future__ import annotations

from typing import Any

import torch

from allmetal.errors import PlatformError
from allmetal.platform.contract import DeviceInfo
from allmetal_rocm.advice import advise
from allmetal_rocm.arch import ARCHS, plain
from allmetal_triton.device.collectives import TorchCollectives
from allmetal_triton.device.gpu import TorchGPU, TorchModule, ordinal_of
from allmetal_triton.device.launcher import check_launcher

HIP = TorchModule(
    type="cuda",
    graph=lambda: torch.cuda.CUDAGraph(),
    capture={"capture_error_mode": "thread_local"},
)


def open_device(info: DeviceInfo) -> TorchGPU:
    """Raises PlatformError where torch cannot drive the device, saying what to mend."""
    if torch.version.hip is None:
        raise PlatformError(
            f"{info.name} cannot be used: torch {torch.__version__} was built without ROCm",
            hint="install a ROCm build of torch: https://pytorch.org/get-started/locally",
        )
    try:
        torch.cuda.init()
    except RuntimeError as error:  # torch's words, e.g. that it sees no GPU
        raise PlatformError(
            f"{info.name} cannot be used: {str(error).splitlines()[0]}",
            hint=f"torch {torch.__version__} wants the driver of ROCm {torch.version.hip}",
        ) from error
    ordinal = ordinal_of(
        info, HIP, hidden_by="HIP_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES leaves it out"
    )
    facts: Any = torch.cuda.get_device_properties(ordinal)
    arch = plain(facts.gcnArchName)
    if arch not in ARCHS:
        raise PlatformError(
            f"{info.name} is {arch}; there are kernels for {', '.join(ARCHS)}",
            hint="--platform cpu",
        )
    check_launcher(info.name)
    device = f"cuda:{ordinal}"
    return TorchGPU(
        info,
        HIP,
        ordinal,
        advise=advise,
        versions={"hip": torch.version.hip, "driver": info.driver},
        communicator=TorchCollectives("nccl", device),
    )
