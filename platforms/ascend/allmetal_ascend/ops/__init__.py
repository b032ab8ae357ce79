"""Kernels on torch_npu's operators, a family a file.

`torch.ops.npu` is looked up when an op is built, so that a kernel can be asked what it supports
where torch_npu is not installed.
"""

from __future__ import annotations
