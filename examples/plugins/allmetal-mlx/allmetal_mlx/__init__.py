"""allmetal on Apple Silicon, through MLX: a tensor library that is lazy and is not torch."""

from __future__ import annotations

from allmetal_mlx.platform import MlxPlatform

__all__ = ["MlxPlatform"]
