"""allmetal on NVIDIA GPUs: torch drives them, cuBLAS multiplies, Triton does the rest."""

from __future__ import annotations

from allmetal_cuda.platform import CudaPlatform

__all__ = ["CudaPlatform"]
