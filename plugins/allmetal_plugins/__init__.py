"""Built-in plugins, which enter by the same door as a stranger's."""

from __future__ import annotations

from allmetal_plugins.hardware import allmetal_hardware_hints
from allmetal_plugins.parsers import allmetal_parsers
from allmetal_plugins.structured import allmetal_structured_providers
from allmetal_plugins.torch_needs import allmetal_torch_needs

__all__ = [
    "allmetal_hardware_hints",
    "allmetal_parsers",
    "allmetal_structured_providers",
    "allmetal_torch_needs",
]
