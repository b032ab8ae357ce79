"""A step noted while it is computed, and computed again from the notes."""

from __future__ import annotations

from allmetal_cpu.recording.graphs import CpuGraphs
from allmetal_cpu.recording.tape import by_hand

__all__ = ["CpuGraphs", "by_hand"]
