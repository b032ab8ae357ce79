"""Recorded steps: a tape of torch's operators and the very tensors they were given.

A replay runs the tape and nothing of what wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from allmetal.errors import GraphError

Call = Callable[[], Any]
WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "repeat_interleave", "equal"}
"""Operators whose answer the host would wait for."""


@dataclass(frozen=True, slots=True)
class Tape:
    steps: Sequence[tuple[Call, Sequence[torch.Tensor]]]

    def replay(self) -> None:
        for run, places in self.steps:
            made = tensors(run())
            for place, result in zip(places, made, strict=False):
                place.copy_(result)


class Tapes:
    """The device's `GraphCapture`."""

    computes = False

    def capture(self, run: Callable[[], object]) -> Tape:
        with Recorder() as recorder:
            run()
        for tensor, before in reversed(recorder.before):
            tensor.copy_(before)  # recording runs nothing, as far as anybody can see
        return Tape(recorder.steps)


@dataclass
class Recorder(TorchDispatchMode):
    steps: list[tuple[Call, Sequence[torch.Tensor]]] = field(default_factory=list)
    before: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    """What is written to and was there before the recording, with what it held."""
    own: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket.__name__ in WAITS:
            raise GraphError(f"{func} waits for the device")
        given = tensors((args, kwargs))
        if func._schema.is_mutable:
            theirs = [x for x in written(func, args, kwargs) if memory(x) not in self.own]
            self.before += [(x, x.clone()) for x in theirs]
        result = func(*args, **kwargs)
        places = [x for x in tensors(result) if memory(x) not in set(map(memory, given))]
        self.own.update(map(memory, places))
        if func._schema.is_mutable or places:  # a view is the same memory: nothing to run
            self.steps.append((lambda: func(*args, **kwargs), places))
        return result


def written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The arguments that an operator's schema says it writes to."""
    names = [a.name for a in func._schema.arguments if a.alias_info and a.alias_info.is_write]
    given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | dict(kwargs)
    return tensors([given[name] for name in names if name in given])


def memory(x: torch.Tensor) -> int:
    return x.untyped_storage().data_ptr()


def tensors(values: object) -> list[torch.Tensor]:
    return [x for x in tree_leaves(values) if isinstance(x, torch.Tensor)]
