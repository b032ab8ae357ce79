"""Work that is recorded once and launched again and again, or why it is not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from allmetal.platform.contract import Graph, GraphCapture

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Launch:
    graph: Graph
    made: list[torch.Tensor]

    @property
    def result(self) -> torch.Tensor:
        """What the last run left: `made` is filled where a replay calls what was recorded."""
        return self.made[0]


@dataclass(frozen=True, slots=True)
class Failure:
    reason: str
    for_memory: bool  # so that less of it may do


def recorded(capture: GraphCapture, run: Callable[[], torch.Tensor]) -> Launch | Failure:
    """`run`, recorded."""
    try:
        made = [torch.empty(0) if capture.computes else run()]  # so that nothing is left to compile

        def once() -> None:
            made[0] = run()

        graph = capture.capture(once)
        return Launch(graph, made)
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


class Ladder:
    """`run` of some sizes.  Where the device computes while it records, only `at_once` of them
    are recorded before they come.

    `sizes`, rising, are those that can be launched, `launches` those that are recorded by now, and
    `reason` says why not all can be.
    """

    def __init__(
        self,
        capture: GraphCapture,
        sizes: Sequence[int],
        prepare: Callable[[int], None],
        run: Callable[[int], torch.Tensor],
        unit: str,
        *,
        at_once: Sequence[int] = (),
    ) -> None:
        self._capture, self._run, self._unit = capture, run, unit
        wanted = at_once if capture.computes else sizes
        self.launches, self.reason = record_ladder(capture, wanted, prepare, run, unit)
        late = capture.computes and self.reason is None
        self.sizes = sorted(sizes if late else self.launches)

    def result(self, size: int) -> torch.Tensor:
        """What the last launch of this size left."""
        return self.launches[size].result

    def launch(self, size: int) -> torch.Tensor | None:
        """What it leaves.  None where it cannot be recorded, which is not tried twice."""
        if size in self.launches:
            self.launches[size].graph.replay()
            return self.launches[size].result
        if size not in self.sizes:
            return None
        answer = recorded(self._capture, partial(self._run, size))
        if isinstance(answer, Failure):
            self.sizes.remove(size)
            log.warning("steps of %d %s are launched by hand: %s", size, self._unit, answer.reason)
            return None
        self.launches[size] = answer
        return answer.result
