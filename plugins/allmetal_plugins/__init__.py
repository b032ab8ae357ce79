"""Built-in plugins, which enter by the same door as a stranger's."""

from __future__ import annotations
