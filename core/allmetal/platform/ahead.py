"""What a platform may offer beside `Platform`, where its kernels are compiled at first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable


@runtime_checkable
class CompilesAhead(Protocol):
    """Kept beside `Platform` by one that compiles a kernel when it is first launched."""

    def compile_ahead(self, rehearse: Callable[[], None]) -> None:
        """Call `rehearse`, which calls kernels with tensors of torch's meta device: launch nothing,
        and have all that would be launched compiled side by side, in the background.

        A launch of what is not compiled yet waits for it.  What `rehearse` raises goes on.
        """
        ...
