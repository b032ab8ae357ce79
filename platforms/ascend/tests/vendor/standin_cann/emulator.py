"""What the device would compute, computed here: a dispatch mode around the real torch_npu.

Each operator on an NPU tensor comes by after the dispatcher has held the call against the schema.
Views, allocation and copies between host and device are torch_npu's own.  Everything else is
answered on tensors that share the device's memory, which is the host's: torch's operators by torch,
the vendor's by `operators`, whose answers must have the shapes and types that torch_npu's own meta
kernel gives for the call.

While a stream is captured an answer is made for its shape alone, and the call is kept with the
model; running the model runs the calls again, over the same memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from standin_cann.load import load
from standin_cann.operators import OPERATORS, without_checks

_ALLOCATE = (
    "empty",
    "empty_strided",
    "resize_",
    "set_",
    "record_stream",
    "is_pinned",
    "_npu_fused_infer_attention_score_infer_output",
)
_OWN = ("detach", "alias", "_reshape_alias", "unfold")
_NO_META = ("npu_format_cast", "_npu_fused_infer_attention_score_get_max_workspace")
"""Those whose real meta kernel wants a device, or gives another size than it says."""
_BEGIN, _END, _RUN, _DESTROY, _GROUP_BEGIN, _GROUP_END, _UPDATE_BEGIN, _UPDATE_END = range(1, 9)
_OBSERVER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_ssize_t)


@dataclass(slots=True)
class Call:
    """An operator as it was captured, and the tensors that hold what it made."""

    run: Callable[[], Sequence[torch.Tensor]]
    results: list[torch.Tensor]

    def again(self) -> None:
        for to, made in zip(self.results, self.run(), strict=True):
            shared(to).copy_(made)


@dataclass(slots=True)
class Counts:
    """How often each of the vendor's operators ran, models ran, and groups were written anew."""

    calls: dict[str, int] = field(default_factory=dict)
    runs: int = 0
    updates: int = 0


def shared(x: torch.Tensor) -> torch.Tensor:
    """`x` of the device as a tensor of the host over the same memory."""
    storage = x.untyped_storage()
    size = storage.nbytes()
    if not size:
        return torch.empty(x.shape, dtype=x.dtype)
    memory = (ctypes.c_char * size).from_address(storage.data_ptr())
    flat = torch.frombuffer(memory, dtype=torch.uint8)
    whole = flat[: size // x.dtype.itemsize * x.dtype.itemsize].view(x.dtype)
    return whole.as_strided(x.shape, x.stride(), x.storage_offset())


def _on_device(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "npu"


class Emulator(TorchDispatchMode):
    def __init__(self, *, strict: bool = True) -> None:
        super().__init__()
        self.counts = Counts()
        self._strict = strict
        self._models: dict[int, list[list[Call]]] = {}
        self._groups: dict[int, list[Call]] = {}
        self._open: list[Call] | None = None  # of the model that is being captured
        self._group: list[Call] | None = None  # of the group that is being captured or rewritten
        self._observer = _OBSERVER(self._observe)
        load().standin_observe(self._observer)

    # ---- what the runtime tells ------------------------------------------------------------

    def _observe(self, what: int, handle: int) -> None:
        if what == _BEGIN:
            self._models[handle] = [[]]
            self._open = self._models[handle][0]
        elif what == _END:
            self._open = self._group = None
        elif what == _RUN:
            self.counts.runs += 1
            for part in self._models[handle]:
                for call in part:
                    call.again()
        elif what == _DESTROY:
            self._models.pop(handle, None)
        elif what == _GROUP_BEGIN:
            self._group = self._groups[handle] = []
            model = self._models[max(self._models)]
            model.append(self._group)
        elif what == _GROUP_END:
            self._group = None
            model = self._models[max(self._models)]
            self._open = []
            model.append(self._open)
        elif what == _UPDATE_BEGIN:
            self.counts.updates += 1
            self._group = self._groups[handle]
            self._group.clear()
        elif what == _UPDATE_END:
            self._group = None

    @property
    def _recording(self) -> list[Call] | None:
        return self._group if self._group is not None else self._open

    # ---- operators -------------------------------------------------------------------------

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        space, name = func._schema.name.split("::")
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        there = next((x.device for x in tensors if _on_device(x)), None)
        wanted = kwargs.get("device")
        to = torch.device(wanted) if wanted is not None else there
        if space == "c10d" or (there is None and (to is None or to.type != "npu")):
            return func(*args, **kwargs)
        if space == "aten" and _made_of_others(func):
            # torch_npu has kernels of its own for some of them, such as `to` and `contiguous`.
            with self:
                return func.decompose(*args, **kwargs)
        copies = self._recording is None and _copies(name, tensors, to, kwargs)
        if name in _ALLOCATE or name in _OWN or func.is_view or copies:
            return func(*args, **kwargs)
        if to is None or (to.type == "cpu" and name not in ("_to_copy", "copy_")):
            to = there
        return self._answer(func, args, kwargs, space, name, to)

    def _answer(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        space: str,
        name: str,
        device: Any,
    ) -> Any:
        if space in ("npu", "atb"):
            self.counts.calls[name] = self.counts.calls.get(name, 0) + 1
            answer = OPERATORS[name]
        else:
            answer = func
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": "cpu"}
        written = {id(x) for x in _written(func, args, kwargs)}
        originals: dict[int, torch.Tensor] = {}

        def here(x: Any, *, apart: bool = False) -> Any:
            if not _on_device(x):
                return x
            seen = shared(x)
            if apart and id(x) in written:
                seen = seen.clone()
            originals[id(seen)] = x
            return seen

        recording = self._recording
        a, k = tree_map(lambda x: here(x, apart=recording is not None), (args, kwargs))
        with torch._C._DisableTorchDispatch(), without_checks(not self._strict):
            made = answer(*a, **k)
        results: list[torch.Tensor] = []

        def back(x: Any) -> Any:
            if not isinstance(x, torch.Tensor):
                return x
            if id(x) in originals:
                return originals[id(x)]
            if device is None or device.type != "npu":
                return x
            kept = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)
            shared(kept).copy_(x)
            results.append(kept)
            return kept

        out = tree_map(back, made)
        told = space in ("npu", "atb") and name not in _NO_META and func._overloadname != "out"
        if told and self._strict:
            _hold_against_meta(func, args, kwargs, out)
        if recording is not None:
            recording.append(_kept(answer, args, kwargs, results, self._strict))
        return out


def _kept(answer: Any, args: Any, kwargs: Any, results: list[torch.Tensor], strict: bool) -> Call:
    def run() -> Sequence[torch.Tensor]:
        a, k = tree_map(lambda x: shared(x) if _on_device(x) else x, (args, kwargs))
        inputs = {id(x) for x in tree_leaves((a, k))}
        with torch._C._DisableTorchDispatch(), without_checks(not strict):
            made = answer(*a, **k)
        leaves = [x for x in tree_leaves(made) if isinstance(x, torch.Tensor)]
        return [x for x in leaves if id(x) not in inputs]

    return Call(run, results)


def _made_of_others(func: Any) -> bool:
    """An operator that torch takes apart."""
    key = "CompositeImplicitAutograd"
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key))


def _copies(name: str, tensors: Sequence[torch.Tensor], to: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether bytes go from one side to the other as they are: torch_npu does it."""
    if name not in ("_to_copy", "copy_"):
        return False
    sides = {x.device.type for x in tensors} | ({to.type} if name == "_to_copy" and to else set())
    kinds = {x.dtype for x in tensors} | ({kwargs["dtype"]} if kwargs.get("dtype") else set())
    return len(sides) == 2 and len(kinds) == 1 and all(x.is_contiguous() for x in tensors)


def _written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    schema = func._schema.arguments
    given = {**{a.name: v for a, v in zip(schema, args, strict=False)}, **kwargs}
    for argument in schema:
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from (x for x in tree_leaves(given.get(argument.name)) if _on_device(x))
        elif argument.name == "out":
            yield from (x for x in tree_leaves(given.get("out")) if _on_device(x))


def _hold_against_meta(func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """torch_npu's own idea of the result."""
    meta = tree_map(
        lambda x: (
            torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
            if isinstance(x, torch.Tensor)
            else x
        ),
        (args, {name: value for name, value in kwargs.items() if name != "device"}),
    )
    said = [x for x in tree_leaves(func(*meta[0], **meta[1])) if isinstance(x, torch.Tensor)]
    made = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
    shapes = [[(tuple(x.shape), x.dtype) for x in each] for each in (said, made)]
    assert shapes[0] == shapes[1], f"{func}: torch_npu says {shapes[0]}, and it is {shapes[1]}"


@contextmanager
def emulated(*, strict: bool = True) -> Iterator[Emulator]:
    """torch_npu's device computes inside.  `strict`: as an operator's documents have it; else
    attention takes float32 too, so that tokens can be compared exactly."""
    load()
    import torch_npu  # noqa: F401

    with Emulator(strict=strict) as mode:
        yield mode
