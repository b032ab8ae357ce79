"""Triton kernels that several platforms share. None is written yet.

Not a platform: it has no entry point and discovery never sees it. A platform whose compiler takes
Triton lists kernels from here beside its own, each with its own `supports(spec)`, so that a kernel
that only one vendor's compiler takes stays in that vendor's folder. What is to come: paged
attention (prefill and split-KV decode), fused MoE, norms and activations, quantised linear.
"""

from __future__ import annotations
