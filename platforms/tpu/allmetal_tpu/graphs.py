"""Steps compiled to one program each."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.exc import TorchDynamoException

from allmetal.errors import GraphError
from allmetal.platform.contract import Graph


class CompiledSteps:
    """Records a step by having it compiled: what it launches becomes one XLA program, which is run
    at once."""

    computes = True

    def capture(self, run: Callable[[], object]) -> Graph:
        """Raises GraphError for what cannot be compiled."""
        options: dict[str, Any] = {"guard_filter_fn": _nothing_changes}
        program = torch.compile(
            _of_its_own(run), backend="tpu", dynamic=False, fullgraph=True, options=options
        )
        try:
            program()
        except TorchDynamoException as error:
            run()  # for what it raises itself, which the tracer hides
            line = str(error).partition("\n")[0]
            raise GraphError(f"the step cannot be compiled: {line}") from error
        return _Program(program)


class _Program:
    def __init__(self, program: Callable[[], object]) -> None:
        self._program = program

    def replay(self) -> None:
        self._program()


def _nothing_changes(guards: Sequence[object]) -> Sequence[bool]:
    """What a recorded step reads keeps its place and shape: nothing is checked before a replay."""
    return [False] * len(guards)


def _of_its_own(run: Callable[[], object]) -> Callable[[], object]:
    """`run` with code of its own: torch keeps what it compiled by code, and all steps share one."""

    def step() -> object:
        return run()

    return types.FunctionType(
        step.__code__.replace(), step.__globals__, step.__name__, None, step.__closure__
    )
