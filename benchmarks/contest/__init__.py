"""Two engines in turn on one machine.  Nothing here needs more than Python: rivals' interpreters
import it too."""

from __future__ import annotations
