"""Triton kernels that several platforms share.

Not a platform: it has no entry point and discovery never sees it.  A platform whose compiler takes
Triton lists what `kernels.kernels` returns beside kernels of its own, each with its own
`supports(spec)`.  A kernel that only one vendor's compiler takes stays in that vendor's folder.
"""

from __future__ import annotations
