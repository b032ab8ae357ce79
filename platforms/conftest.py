"""Without a GPU Triton's kernels are interpreted, which is settled when the first is defined: so
before any platform's tests import one."""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
