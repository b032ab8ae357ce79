"""The device's `GraphCapture`: a recorded step is a program of the C++ library."""

from __future__ import annotations

from collections.abc import Callable

import torch

from allmetal.platform.contract import Graph
from allmetal_cpu.native.function import Program
from allmetal_cpu.native.library import Library
from allmetal_cpu.recording.arena import Arena
from allmetal_cpu.recording.tape import Step, Tape


class CpuGraph:
    """Steps made again in order.  It keeps the memory they share."""

    def __init__(self, tape: Tape, arena: Arena) -> None:
        self.by_hand = tuple(tape.reasons)
        """What of it only torch or Python can do."""
        self._steps: list[Callable[[], object]] = [_launch(step) for step in tape.steps]
        self._kept = (tape.kept, arena)

    @property
    def num_parts(self) -> int:
        """Programs, and what is called between them."""
        return len(self._steps)

    def replay(self) -> None:
        if not self.by_hand:  # torch's modes cost more than the calls around a program
            for step in self._steps:
                step()
            return
        with torch.inference_mode():
            for step in self._steps:
                step()


def _launch(step: Step) -> Callable[[], object]:
    return step.run if isinstance(step, Program) else step


class CpuGraphs:
    """Computes while it records, as `GraphCapture` allows."""

    computes = True

    def __init__(self, library: Library) -> None:
        self._library = library
        self._arena = Arena()

    @property
    def num_bytes(self) -> int:
        """Of the memory that all recorded steps share."""
        return self._arena.num_bytes

    def capture(self, run: Callable[[], object]) -> Graph:
        """Raises GraphError where `run` reads values on the host."""
        tape = Tape(self._library, self._arena)
        with tape.running():
            run()
        return CpuGraph(tape, self._arena)
