"""From a config's `model_type` to the file that builds it.  No torch until one is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from allmetal.errors import UnknownModelError
from allmetal.plugins.manager import plugins
from allmetal.quant.scheme import scheme_of
from allmetal_models.config import HFConfig

if TYPE_CHECKING:
    from allmetal_models.base import CausalLM
    from allmetal_models.context import BuildContext

Builder = Callable[[HFConfig, "BuildContext"], "CausalLM"]


def model_types() -> Mapping[str, str]:
    """Model type -> "module:callable", of all plugins."""
    return plugins().models()


def build_model(hf: HFConfig, ctx: BuildContext) -> CausalLM:
    """A model without weights.  Raises as `find` does."""
    module, _, name = find(hf).partition(":")
    build: Builder = getattr(import_module(module), name)
    return build(hf, ctx)


def find(hf: HFConfig) -> str:
    """What builds this config, as "module:callable".  UnknownModelError lists the types there are;
    ModelError says which quantisation is not read."""
    model_type, known = str(hf.get("model_type")), model_types()
    if model_type not in known:
        raise UnknownModelError(
            f"no model is known for model_type {model_type!r}; "
            f"there are {', '.join(sorted(known)) or 'none'}",
            hint="a plugin can add it: see the hook allmetal_models",
        )
    scheme_of(hf)
    return known[model_type]
