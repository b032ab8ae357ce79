"""AMD's own kernels, from the package `amd-aiter`, where it is installed.

An optional provider: what it takes it is asked for first, everything else is Triton's.
"""

from __future__ import annotations
