"""What a platform may offer beside `Platform`, where its kernels are compiled at first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable


@runtime_checkable
class CompilesAhead(Protocol):
    """Kept beside `Platform` by one that compiles a kernel when it is first launched."""

    def compile_ahead(self, rehearse: Callable[[], None]) -> None:
        """Call `rehearse`, which runs steps whose results nobody looks at, and launch none of the
        kernels in it: have them compiled side by side, in the background.

        What torch itself computes meanwhile must stay within bounds, so tensors that a kernel
        would have filled hold zeros.  A later launch of what is not compiled yet waits for it.
        What `rehearse` raises goes on.
        """
        ...
