"""hatchling, plus one rule: an sdist names the platforms by version, a checkout by folder.

`pip install -e '.[cpu]'` in a clone must find platforms/cpu beside it; what is published must
find `allmetal-cpu` on an index. PEP 517 tells which of the two is being built, and the metadata
hook in hatch_build.py asks `building_for_index()`.
"""

from __future__ import annotations

import contextvars
from typing import Any

from hatchling import build as _hatchling
from hatchling.build import *  # noqa: F403  (which hooks exist depends on the front end)

_for_index = contextvars.ContextVar("_for_index", default=False)


def building_for_index() -> bool:
    """True while an sdist is being built."""
    return _for_index.get()


def build_sdist(sdist_directory: str, config_settings: dict[str, Any] | None = None) -> str:
    token = _for_index.set(True)
    try:
        return _hatchling.build_sdist(sdist_directory, config_settings)
    finally:
        _for_index.reset(token)
