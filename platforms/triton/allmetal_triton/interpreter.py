"""Run kernels on the host by Triton's interpreter, for tests: slow, and wrong in bfloat16.

`TRITON_INTERPRET=1` must be in the environment before any kernel is defined.
"""

from __future__ import annotations

from typing import Any


def mend() -> None:
    """Triton up to 3.6 makes an int of an array of one element, which numpy 2.4 refuses."""
    from triton.runtime import interpreter  # pyright: ignore[reportMissingImports]

    plain = interpreter._patch_lang_tensor
    if hasattr(plain, "mended"):
        return

    def patched(tensor: Any, scope: Any) -> None:
        plain(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    patched.mended = True  # type: ignore[attr-defined]
    interpreter._patch_lang_tensor = patched
