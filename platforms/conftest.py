"""Without a GPU Triton's kernels are interpreted, which is settled when the first is defined: so
before any platform's tests import one.  And torch loads no extension for a device that is not
there: a vendor's, where it is installed, is loaded by the tests that want it."""

from __future__ import annotations

import os

os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
