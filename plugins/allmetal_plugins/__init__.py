"""Built-in plugins, which enter by the same door as a stranger's."""

from __future__ import annotations

from allmetal_plugins.hardware import allmetal_hardware_hints

__all__ = ["allmetal_hardware_hints"]
