"""allmetal: one LLM engine, all metal.

The names here are the public API.  They are imported when first used, so that `import allmetal`
costs next to nothing and needs no tensor library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from allmetal.config import EngineConfig
    from allmetal.constraint import StructuredOutput
    from allmetal.engine.async_engine import AsyncEngine
    from allmetal.engine.llm import LLM
    from allmetal.errors import AllmetalError
    from allmetal.request import RequestOutput, SamplingParams

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "AllmetalError",
    "AsyncEngine",
    "EngineConfig",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutput",
    "__version__",
]

_HOME = {
    "LLM": "allmetal.engine.llm",
    "AllmetalError": "allmetal.errors",
    "AsyncEngine": "allmetal.engine.async_engine",
    "EngineConfig": "allmetal.config",
    "RequestOutput": "allmetal.request",
    "SamplingParams": "allmetal.request",
    "StructuredOutput": "allmetal.constraint",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'allmetal' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
