"""Run kernels on the host by Triton's interpreter, for tests: slow, and wrong in bfloat16.

`TRITON_INTERPRET=1` must be in the environment before any kernel is defined.
"""

from __future__ import annotations

from typing import Any

import torch

_TORCH = {
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e4b8": torch.float8_e4m3fnuz,
    "fp8e5": torch.float8_e5m2,
    "fp8e5b16": torch.float8_e5m2fnuz,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp64": torch.float64,
}


def mend() -> None:
    """What the interpreter lacks of what compilers do, up to Triton 3.7.

    Triton up to 3.6 makes an int of an array of one element, which numpy 2.4 refuses.  8-bit floats
    are cut off where a device rounds, and the formats of CDNA 3 are not known.
    """
    from triton.runtime import interpreter  # pyright: ignore[reportMissingImports]

    if hasattr(interpreter, "mended"):
        return
    interpreter.mended = True
    _mend_index(interpreter)
    _mend_types(interpreter)
    _mend_rounding(interpreter)


def _mend_index(interpreter: Any) -> None:
    plain = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        plain(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


def _mend_types(interpreter: Any) -> None:
    plain = interpreter._patch_lang_core

    def patched(lang: Any, scope: Any) -> None:
        plain(lang, scope)
        known = lang.dtype.to_ir

        def to_ir(self: Any, builder: Any) -> Any:
            if self.name in ("fp8e4b8", "fp8e5b16"):
                return getattr(builder, f"get_{self.name}_ty")()
            return known(self, builder)

        scope.set_attr(lang.dtype, "to_ir", to_ir)

    interpreter._patch_lang_core = patched


def _mend_rounding(interpreter: Any) -> None:
    plain = interpreter._convert_float

    def convert(given: Any, of: Any, to: Any, rounding: Any) -> Any:
        if of.name in _TORCH and to.name in _TORCH and (of.is_fp8() or to.is_fp8()):
            codes = torch.frombuffer(bytearray(given.tobytes()), dtype=_TORCH[of.name])
            made = codes.to(_TORCH[to.name]).view(getattr(torch, f"uint{to.primitive_bitwidth}"))
            return made.numpy().reshape(given.shape)
        return plain(given, of, to, rounding)

    interpreter._convert_float = convert
