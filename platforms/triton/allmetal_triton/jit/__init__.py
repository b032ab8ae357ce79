"""Code that runs on the device.

Functions take raw pointers; sizes known when a kernel is built are `constexpr` and upper case.
Sums run in float32.
"""

from __future__ import annotations
