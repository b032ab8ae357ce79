"""The cuda platform."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from allmetal.errors import PlatformError
from allmetal.platform.contract import (
    DEFAULT_OPTIONS,
    AnyKernel,
    CapabilityTable,
    Device,
    DeviceInfo,
    OpenOptions,
    Probe,
)
from allmetal_cuda import capabilities, nvml
from allmetal_cuda.probe import probe


class CudaPlatform:
    """NVIDIA GPUs.  `root` is where the file system begins; `gpus` asks the driver's library."""

    name = "cuda"
    contract_version = 1

    def __init__(
        self, root: Path = Path("/"), gpus: Callable[[], Sequence[nvml.Gpu]] = nvml.gpus
    ) -> None:
        self._root = root
        self._gpus = gpus

    def probe(self) -> Probe:
        return probe(self._root, self._gpus)

    def open(self, device: DeviceInfo, options: OpenOptions = DEFAULT_OPTIONS) -> Device:
        from allmetal_cuda.device import open_device

        return open_device(device)

    def capabilities(self, device: DeviceInfo) -> CapabilityTable:
        return capabilities.table(device)

    def kernels(self, device: DeviceInfo) -> Mapping[str, Sequence[AnyKernel]]:
        try:
            import triton  # noqa: F401  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise PlatformError(
                "the kernels for NVIDIA GPUs are written in Triton, and it is not installed",
                hint="pip install triton",
            ) from error
        from allmetal_cuda.kernels import kernels

        return kernels(device)

    def compile_ahead(self, rehearse: Callable[[], None]) -> None:
        """See `allmetal.platform.ahead`."""
        from allmetal_triton.ahead import compile_ahead

        compile_ahead(rehearse)
