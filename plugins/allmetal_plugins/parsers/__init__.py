"""Parsers of the main families of models."""

from __future__ import annotations

from collections.abc import Sequence

from allmetal.parsing.contract import ParserSpec
from allmetal.plugins.hookspecs import hookimpl


@hookimpl
def allmetal_parsers() -> Sequence[ParserSpec]:
    from allmetal_plugins.parsers import (
        deepseek,
        gemma,
        glm,
        granite,
        harmony,
        hunyuan,
        internlm,
        kimi,
        llama,
        minimax,
        mistral,
        phi,
        qwen,
        step,
    )

    modules = (qwen, llama, mistral, deepseek, harmony, glm, kimi, minimax, granite, gemma)
    more = (phi, internlm, step, hunyuan)
    return [spec for module in (*modules, *more) for spec in module.SPECS]
