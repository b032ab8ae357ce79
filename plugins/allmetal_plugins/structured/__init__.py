"""Providers of structured output.  Their libraries are an extra: allmetal[structured]."""

from __future__ import annotations

from collections.abc import Mapping

from allmetal.plugins.hookspecs import hookimpl


@hookimpl
def allmetal_structured_providers() -> Mapping[str, str]:
    package = "allmetal_plugins.structured"
    return {
        "xgrammar": f"{package}.xgrammar:XGrammar",
        "llguidance": f"{package}.llguidance:LLGuidance",
    }
