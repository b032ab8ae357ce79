"""Acme One as a device type of torch: `torch.empty(3, device="acme")`.

torch keeps one key for back ends that it does not know, PrivateUse1; it is given our name.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import torch

NAME = "acme"


def register() -> None:
    """Once a process; what torch does there is in csrc/acme.cpp."""
    if hasattr(torch, NAME):
        return
    (library,) = Path(__file__).parent.glob("_acme*.so")
    torch.ops.load_library(library)
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, device_module())


def device_module() -> ModuleType:
    """What torch asks a device type at `torch.acme`."""
    module = ModuleType(f"torch.{NAME}")
    answers = {"is_available": True, "is_initialized": True, "device_count": 1, "current_device": 0}
    for name, answer in answers.items():
        setattr(module, name, lambda answer=answer: answer)
    return module
