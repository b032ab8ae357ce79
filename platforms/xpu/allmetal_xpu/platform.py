"""The xpu platform."""

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
from allmetal.platform.environment import TorchBuild, torch_build
from allmetal_xpu import capabilities
from allmetal_xpu.probe import probe


class XpuPlatform:
    """Intel GPUs.  `root` is where the file system begins; `torch` tells what torch was built
    for."""

    name = "xpu"
    contract_version = 1

    def __init__(
        self,
        root: Path = Path("/"),
        torch: Callable[[], TorchBuild | None] = torch_build,
    ) -> None:
        self._root, self._torch = root, torch

    def probe(self) -> Probe:
        return probe(self._root, self._torch())

    def open(self, device: DeviceInfo, options: OpenOptions = DEFAULT_OPTIONS) -> Device:
        from allmetal_xpu.device import open_device

        return open_device(device)

    def capabilities(self, device: DeviceInfo) -> CapabilityTable:
        return capabilities.table(device)

    def kernels(self, device: DeviceInfo) -> Mapping[str, Sequence[AnyKernel]]:
        try:
            import triton  # noqa: F401  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise PlatformError(
                "the kernels for Intel GPUs are written in Triton, and it is not installed",
                hint="torch's builds for XPU bring it as pytorch-triton-xpu",
            ) from error
        from allmetal_xpu.kernels import kernels

        return kernels(device)

    def compile_ahead(self, rehearse: Callable[[], None]) -> None:
        """See `allmetal.platform.ahead`."""
        from allmetal_triton.ahead import compile_ahead

        compile_ahead(rehearse)
