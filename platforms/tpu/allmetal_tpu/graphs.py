"""Steps compiled to one program each."""

from __future__ import annotations

from collections.abc import Callable

import torch

from allmetal.platform.contract import Graph


class CompiledSteps:
    """Records a step by having it compiled: what it launches becomes one XLA program, which is run
    at once."""

    computes = True

    def capture(self, run: Callable[[], object]) -> Graph:
        program = torch.compile(run, backend="tpu", dynamic=False, fullgraph=True)
        program()
        return _Program(program)


class _Program:
    def __init__(self, program: Callable[[], object]) -> None:
        self._program = program

    def replay(self) -> None:
        self._program()
