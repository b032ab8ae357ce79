"""Work that is recorded once and launched again and again, or why it is not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch

from allmetal.platform.contract import Graph, GraphCapture


@dataclass(frozen=True, slots=True)
class Launch:
    """`result` is what a replay leaves, in the same memory each time."""

    graph: Graph
    result: torch.Tensor


@dataclass(frozen=True, slots=True)
class Failure:
    reason: str
    for_memory: bool  # so that less of it may do


def recorded(capture: GraphCapture, run: Callable[[], torch.Tensor]) -> Launch | Failure:
    """`run`, recorded."""
    try:
        made = [run()]  # so that nothing is left to be compiled

        def once() -> None:
            made[0] = run()

        graph = capture.capture(once)
        return Launch(graph, made[0])
    except Exception as error:  # whatever a kernel or a device raises
        lines = str(error).splitlines()
        reason = f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
        return Failure(reason, isinstance(error, torch.OutOfMemoryError))


def record_ladder(
    capture: GraphCapture,
    sizes: Iterable[int],
    prepare: Callable[[int], None],
    run: Callable[[int], torch.Tensor],
    unit: str,
) -> tuple[dict[int, Launch], str | None]:
    """`run` of each size, the largest first: the others fit into its memory.  `prepare` comes
    before it and is not recorded.

    What fails is left out, and the second answer says why.  A size for which there is no memory
    leaves the smaller ones a chance; any other failure is theirs too.
    """
    made: dict[int, Launch] = {}
    reason = None
    for size in sorted(sizes, reverse=True):
        prepare(size)
        answer = recorded(capture, partial(run, size))
        if isinstance(answer, Launch):
            made[size] = answer
            continue
        reason = reason or f"at {size} {unit}: {answer.reason}"
        if not answer.for_memory:
            break
    return dict(sorted(made.items())), reason
