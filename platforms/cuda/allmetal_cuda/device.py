"""An NVIDIA GPU as torch drives it."""

from __future__ import annotations

import torch

from allmetal.errors import PlatformError
from allmetal.platform.contract import DeviceInfo
from allmetal_cuda.advice import advise
from allmetal_triton.device.collectives import TorchCollectives
from allmetal_triton.device.gpu import TorchGPU, TorchModule, ordinal_of
from allmetal_triton.device.launcher import check_launcher

OLDEST = (8, 0)
"""Ampere: the first with bfloat16 and asynchronous copies, which the kernels are written for."""

CUDA = TorchModule(
    type="cuda",
    graph=lambda: torch.cuda.CUDAGraph(),
    capture={"capture_error_mode": "thread_local"},
)


def open_device(info: DeviceInfo) -> TorchGPU:
    """Raises PlatformError where torch cannot drive the device, saying what to mend."""
    if torch.version.cuda is None:
        raise PlatformError(
            f"{info.name} cannot be used: torch {torch.__version__} was built without CUDA",
            hint="install a CUDA build of torch: https://pytorch.org/get-started/locally",
        )
    try:
        torch.cuda.init()
    except RuntimeError as error:  # torch's words, e.g. that the driver is too old
        raise PlatformError(
            f"{info.name} cannot be used: {str(error).splitlines()[0]}",
            hint=f"torch {torch.__version__} wants a driver for CUDA {torch.version.cuda}",
        ) from error
    ordinal = ordinal_of(info, CUDA, hidden_by="CUDA_VISIBLE_DEVICES leaves it out")
    capability = torch.cuda.get_device_capability(ordinal)
    if capability < OLDEST:
        has, needs = (".".join(map(str, pair)) for pair in (capability, OLDEST))
        raise PlatformError(
            f"{info.name} has compute capability {has}; the kernels need {needs} or newer",
            hint="--platform cpu",
        )
    check_launcher(info.name)
    return TorchGPU(
        info,
        CUDA,
        ordinal,
        advise=advise,
        versions={"cuda": torch.version.cuda, "driver": info.driver},
        communicator=TorchCollectives("nccl", f"cuda:{ordinal}"),
    )
