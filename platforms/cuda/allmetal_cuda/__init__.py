"""allmetal on NVIDIA GPUs through CUDA: it finds devices and cannot drive them yet."""

from __future__ import annotations

from allmetal_cuda.platform import CudaPlatform

__all__ = ["CudaPlatform"]
