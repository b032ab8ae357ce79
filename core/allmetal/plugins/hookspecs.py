"""What a plugin may announce.  The docstrings are the contract.

A plugin is a module named in the entry point group `allmetal.plugins`; its functions marked with
`hookimpl` are called when what they announce is first needed, never per token.  A plugin that
raises is reported (`allmetal doctor`) and left out; the others serve on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pluggy

from allmetal.platform.hints import HardwareHint, TorchNeed

if TYPE_CHECKING:  # it looks for its parsers here
    from allmetal.parsing.contract import ParserSpec

GROUP = "allmetal.plugins"

hookspec = pluggy.HookspecMarker("allmetal")
hookimpl = pluggy.HookimplMarker("allmetal")


@hookspec
def allmetal_models() -> Mapping[str, str]:  # type: ignore[empty-body]
    """Model types this plugin can build: `model_type` of a config.json -> "module:callable".

    The callable takes (config, BuildContext) and returns a `CausalLM`; the module is imported
    when a checkpoint of that type is loaded.  A plugin may replace a built-in model type.
    """


@hookspec
def allmetal_hardware_hints() -> Sequence[HardwareHint]:  # type: ignore[empty-body]
    """Hardware that can be seen from files alone, and the platform it needs.

    Called when a platform is chosen automatically: hardware whose platform does not work is an
    error, so that no run silently lands on a slower device.  Must be quick and open no device.
    """


@hookspec
def allmetal_torch_needs() -> Sequence[TorchNeed]:  # type: ignore[empty-body]
    """Which torch, built for what, drives which platform: for telling a wrong one from a right one
    without importing it.
    """


@hookspec
def allmetal_parsers() -> Sequence[ParserSpec]:  # type: ignore[empty-body]
    """Parsers of what models write: reasoning, tool calls.  Called when a front end starts.

    A stranger's parser replaces a built-in one of its name.
    """


@hookspec
def allmetal_structured_providers() -> Mapping[str, str]:  # type: ignore[empty-body]
    """Providers of structured output: name -> "module:callable".

    The callable takes a `Vocabulary` and returns a `Provider` (allmetal.structured.contract); its
    module is imported when the first constraint is compiled, and may fail to be with ImportError.
    Of those that are not asked for by name the first that can compile a constraint does; built-in
    ones come first.  A stranger's replaces a built-in one of its name.
    """
