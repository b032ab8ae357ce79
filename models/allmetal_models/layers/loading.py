"""Hand a checkpoint's tensors to the layers that want them, one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from re import Pattern

from allmetal.errors import CheckpointError
from allmetal_models.base import WeightReader
from allmetal_models.context import BuildContext
from allmetal_models.layers.scope import Incoming, Wanted

_NAMES_SHOWN = 5


def load(
    ctx: BuildContext,
    wanted: Mapping[str, Sequence[Wanted]],
    readers: Iterable[tuple[str, WeightReader]],
    ignored: Pattern[str],
) -> None:
    """Every reader goes to the layers that want its name and is let go before the next is opened.

    CheckpointError, after all have been seen, names what is missing, unexpected and mis-shaped.
    """
    missing = dict.fromkeys(wanted)
    unexpected: list[str] = []
    misshapen: list[str] = []
    for name, reader in readers:
        layers = wanted.get(name)
        if layers is None:
            if not ignored.search(name):
                unexpected.append(name)
            continue
        missing.pop(name, None)
        expected = layers[0].shape
        if tuple(reader.shape) != expected:
            misshapen.append(f"{name} is {list(reader.shape)}, expected {list(expected)}")
            continue
        _deliver(Incoming(reader, ctx), layers)
    problems = (
        _listed("missing", list(missing)),
        _listed("unexpected", unexpected),
        _listed("of another shape", misshapen),
    )
    if any(problems):
        raise CheckpointError(
            "the checkpoint does not fit the model: " + "; ".join(filter(None, problems)),
            hint="is config.json the one that was saved with these weights?",
        )


def _deliver(incoming: Incoming, layers: Sequence[Wanted]) -> None:
    """In a function of its own: what was read is not held while the next tensor is."""
    for layer in layers:
        layer.receive(incoming)


def _listed(what: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return f"{len(names)} {what} ({', '.join(names[:_NAMES_SHOWN])}{more})"
