"""Graph capture on the host, as strict as a device's: what is recorded is torch's operators with
the very tensors and numbers they were given.  A replay runs them again and no Python of the
caller's, so a number that should have changed and did not shows in the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from allmetal.errors import GraphError

aten = torch.ops.aten
WAITS = {
    aten._local_scalar_dense,
    aten.item,
    aten.is_nonzero,
    aten.nonzero,
    aten.masked_select,
    aten.repeat_interleave,  # by a tensor
    aten._unique2,
    aten.equal,
}
"""Operators whose result, or its shape, the host has to wait for."""
UNWRITTEN = {aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty}


def _tensors(values: object) -> list[torch.Tensor]:
    return [x for x in tree_leaves(values) if isinstance(x, torch.Tensor)]


@dataclass(frozen=True)
class Launch:
    func: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    made: list[torch.Tensor]  # outputs in memory of their own

    def again(self) -> None:
        results = _tensors(self.func(*self.args, **self.kwargs)) if self.made else None
        if results is None:
            self.func(*self.args, **self.kwargs)
            return
        for place, result in zip(self.made, results, strict=True):
            place.copy_(result)


class _Watch(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.launches: list[Launch] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        waits = func.overloadpacket in WAITS and func is not aten.repeat_interleave.self_int
        if waits or _indexes_by_mask(func, args):
            raise GraphError(f"{func} waits for the device")
        result = func(*args, **kwargs)
        memory = {x.untyped_storage().data_ptr() for x in _tensors((args, dict(kwargs)))}
        outputs = _tensors(result)
        views = [x for x in outputs if x.untyped_storage().data_ptr() in memory]
        if func.overloadpacket in UNWRITTEN or (views and not func._schema.is_mutable):
            return result  # nothing runs: the tensors recorded with what follows are these
        self.launches.append(Launch(func, args, kwargs, [] if views else outputs))
        return result


def _indexes_by_mask(func: Any, args: Sequence[Any]) -> bool:
    if func.overloadpacket not in (aten.index, aten.index_put_, aten.index_put):
        return False
    return any(x.dtype in (torch.bool, torch.uint8) for x in _tensors(args[1]))


@dataclass
class Recorded:
    owner: Recorder
    launches: list[Launch]

    def replay(self) -> None:
        self.owner.replays += 1
        for launch in self.launches:
            launch.again()


@dataclass
class Recorder:
    """A `GraphCapture`.  `fail(number)` may raise when the capture of that number begins.

    What is recorded is computed too, but only `computes` lets anyone build on that.
    """

    fail: Callable[[int], None] = lambda number: None
    captures: int = 0
    replays: int = 0
    computes: bool = False

    def capture(self, run: Callable[[], object]) -> Recorded:
        self.captures += 1
        self.fail(self.captures)
        with _Watch() as seen:
            run()
        return Recorded(self, seen.launches)
