"""The operators of the real vllm-xpu-kernels in torch's dispatcher, without its libraries.

Those need SYCL to be loaded; their schemas are read out of them as text, and defined.  So a call
with a wrong name, type or number of arguments is refused as the real library would refuse it.  What
is computed is the caller's to say, on the host.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

LIBRARIES = ("_C", "_moe_C", "_vllm_fa2_C", "_xpu_C")
_TEXT = re.compile(rb"[\t\n -~]{12,}")
_SCHEMA = re.compile(r"[a-z_][a-z_0-9]*\(.*\) ?-> ?(\(|Tensor|int|bool|float|str)")


def read(library: str) -> dict[str, str]:
    """Operator -> schema, of one of the package's libraries."""
    spec = find_spec("vllm_xpu_kernels")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    file = Path(spec.submodule_search_locations[0]) / f"{library}.abi3.so"
    found = {}
    for text in _TEXT.findall(file.read_bytes()):
        line = " ".join(text.decode().split())
        if _SCHEMA.match(line):
            found[torch._C.parse_schema(line).name] = line
    return found


def define(
    schemas: Mapping[str, Mapping[str, str]], computed: Mapping[str, Callable[..., Any]]
) -> list[torch.library.Library]:
    """Operators by library; `computed` by "library::name".  They last as long as what is given."""
    made = []
    for library, operators in schemas.items():
        place = torch.library.Library(library, "FRAGMENT")
        for name, schema in operators.items():
            place.define(schema)
            if call := computed.get(f"{library}::{name}"):
                place.impl(name, call, "CPU")
        made.append(place)
    return made
