"""`allmetal serve MODEL`: an OpenAI-compatible server."""

from __future__ import annotations

import argparse

from allmetal.cli.options import add_options, engine_options, given
from allmetal.config import EngineConfig, ServerConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a folder, a .gguf file, or a hub name")
    add_options(parser, ServerConfig)
    add_options(parser, EngineConfig, skip=("model",))


def execute(args: argparse.Namespace) -> int:
    engine_config = EngineConfig(**engine_options(args))
    config = ServerConfig(**given(args, ServerConfig))
    from allmetal.server.serve import serve

    return serve(engine_config, config)
