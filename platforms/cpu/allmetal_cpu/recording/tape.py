"""What a step does, noted in order: calls of the C++ library in programs, and between them what
only torch can do.

Torch's operators are seen where torch dispatches them.  What they allocate is taken from the
arena; views cost nothing and are not noted; some have a function of the library that does the
same; all others are called again, one by one, and what they make is copied to where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from allmetal.errors import GraphError
from allmetal_cpu.native.function import Program, recording
from allmetal_cpu.native.library import Library
from allmetal_cpu.recording.arena import Arena
from allmetal_cpu.recording.lowering import lower

Step: TypeAlias = Program | Callable[[], object]

_ALLOCATIONS = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
_READ_ON_HOST = {"_local_scalar_dense", "equal", "is_nonzero"}
_TAKEN_APART = ("tolist", "numpy", "__array__", "__dlpack__")
"""Ways to a tensor's values that torch does not dispatch."""


class Tape:
    """`place` gives memory as a tensor's."""

    def __init__(self, library: Library, arena: Arena) -> None:
        self.steps: list[Step] = []
        self.reasons: list[str] = []
        """What only torch can do, in order."""
        self.place = arena.like
        self._library = library
        self.kept: list[torch.Tensor] = []

    def note(self, name: str, words: Sequence[int]) -> None:
        if not self.steps or not isinstance(self.steps[-1], Program):
            self.steps.append(self._library.program())
        program = self.steps[-1]
        assert isinstance(program, Program)
        program.add(name, words)

    def note_by_hand(self, run: Callable[[], object], name: str) -> None:
        self.steps.append(run)
        self.reasons.append(name)

    def keep(self, x: torch.Tensor) -> None:
        """Nothing else may come to lie where `x` does."""
        self.kept.append(x)

    def stay(self, run: Callable[[], Any], made: Any, name: str) -> Any:
        """`made`, which is what `run` gives, at a place to which it is copied again."""
        leaves, tree = tree_flatten(made)
        places = [self.place(x).copy_(x) if isinstance(x, torch.Tensor) else x for x in leaves]
        pairs = [(i, x) for i, x in enumerate(places) if isinstance(x, torch.Tensor)]

        def again() -> None:
            fresh = tree_leaves(run())
            for index, place in pairs:
                place.copy_(fresh[index])

        self.note_by_hand(again, name)
        return tree_unflatten(places, tree)

    @contextmanager
    def running(self) -> Iterator[None]:
        """What this thread computes is noted."""
        recording.tape = self
        try:
            with _Sight(), _Dispatched(self):
                yield
        finally:
            recording.tape = None


def by_hand(run: Callable[[], torch.Tensor], name: str) -> torch.Tensor:
    """What `run` gives, whatever it does on the host: where a step is recorded it is called again
    at every replay.  Its inputs must be tensors that it holds."""
    tape = recording.tape
    if not isinstance(tape, Tape):
        return run()
    recording.tape = None
    try:
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            return tape.stay(run, run(), name)  # type: ignore[no-any-return]
    finally:
        recording.tape = tape


class _Sight(TorchFunctionMode):
    """Refuses what reads values on the host without torch's dispatcher."""

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if getattr(func, "__name__", "") in _TAKEN_APART:
            raise _reads(func.__name__)
        return func(*args, **(kwargs or {}))


class _Dispatched(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Else torch imports its compiler, which takes most of a second, to keep it away here."""
        return False

    def __init__(self, tape: Tape) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tape = tape

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs, name, tape = kwargs or {}, func.overloadpacket.__name__, self._tape
        if name in _ALLOCATIONS:
            return tape.place(func(*args, **kwargs))
        if name in _READ_ON_HOST or _is_sized_by_values(func, name, args):
            raise _reads(name)
        done = lower(tape.place, func, args, kwargs)
        if done is not None:
            return done
        if func._can_decompose():  # torch takes it apart itself, where nobody is recording
            with self:
                return func.decompose(*args, **kwargs)
        given = {_memory(x) for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        made = func(*args, **kwargs)
        tensors = [x for x in tree_leaves(made) if isinstance(x, torch.Tensor)]
        if func._schema.is_mutable and torch.Tag.inplace_view not in func.tags:
            tape.note_by_hand(lambda: func(*args, **kwargs), name)
            return made
        if all(_memory(x) in given for x in tensors):
            for x in tensors if name == "lift_fresh" else ():
                tape.keep(x)
            return made
        return tape.stay(lambda: func(*args, **kwargs), made, name)


def _memory(x: torch.Tensor) -> int:
    """Where it lies; of what oneDNN keeps in an order of its own, which has no views, itself."""
    return id(x) if x.is_mkldnn else x.untyped_storage().data_ptr()


def _is_sized_by_values(func: Any, name: str, args: Sequence[Any]) -> bool:
    if name in ("index", "index_put", "index_put_"):
        indices = [x for x in args[1] if isinstance(x, torch.Tensor)]
        return any(x.dtype in (torch.bool, torch.uint8) for x in indices)
    tags = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
    return any(tag in func.tags for tag in tags)


def _reads(name: str) -> GraphError:
    return GraphError(
        f"the step reads values on the host ({name}), which a replay would not repeat"
    )
