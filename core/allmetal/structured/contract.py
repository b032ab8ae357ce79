"""What checks outputs: a provider compiles constraints, a matcher follows one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from allmetal.constraint import Constraint
from allmetal.platform.contract import Unsupported

Mask = npt.NDArray[np.int32]
"""[ceil(V / 32)]: bit t % 32 of word t // 32 says whether token t may come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """A model's tokens as bytes, None for those that may never be part of an answer.

    `size`: the width of its logits, which may be more than there are tokens.
    """

    tokens: Sequence[bytes | None]
    stop_token_ids: tuple[int, ...]
    size: int


MOST_SPACES = 32
"""In a row where JSON may be spread over lines: weak models would go on with them for ever."""


class Matcher(Protocol):
    """Follows one sequence.  Used by one thread."""

    def fill(self, mask: Mask) -> None:
        """Write which tokens may come next; stop tokens among them where the output is whole."""
        ...

    def accept(self, token_id: int) -> bool:
        """Take the token that came.  False: it was not allowed, and nothing has changed."""
        ...

    @property
    def ended(self) -> bool:
        """Whether a stop token was taken, or nothing may follow."""
        ...


class Grammar(Protocol):
    """A constraint, compiled; shared by all that ask for the same."""

    def matcher(self) -> Matcher:
        """At the beginning of an output."""
        ...


class Provider(Protocol):
    """Compiles, for one vocabulary; called from several threads."""

    def compile(self, constraint: Constraint) -> Grammar | Unsupported:
        """Unsupported: another provider may know it.  Raises RequestError, with a hint, for a
        constraint that is wrong."""
        ...
