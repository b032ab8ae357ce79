"""gRPC: the engine for programs; `engine.proto` is the contract.  Needs the extra `grpc`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module

from allmetal.config import ServerConfig
from allmetal.errors import ConfigError
from allmetal.server.http import LAST_ANSWERS_S
from allmetal.server.state import ServerState

_LOOK_EVERY_S = 0.1


def check_grpc(config: ServerConfig) -> None:
    """Raises ConfigError where gRPC is asked for and its libraries are not there."""
    if config.grpc_port is None:
        return
    for name in ("grpc", "grpc_health", "grpc_reflection", "google.protobuf"):
        try:
            import_module(name)
        except ImportError as error:
            raise ConfigError(
                f"gRPC needs {name}, which is not installed: {error}",
                hint="pip install 'allmetal[grpc]'",
            ) from None


@asynccontextmanager
async def grpc_beside(state: ServerState, config: ServerConfig) -> AsyncIterator[None]:
    """Serve gRPC meanwhile, if `config` has a port for it.

    Once the server drains, its calls are refused; open ones have the time that HTTP's have.
    Raises ConfigError if the port cannot be had.
    """
    if config.grpc_port is None:
        yield
        return
    from allmetal.server.rpc.serve import GrpcServer

    server = GrpcServer(state, config)
    address = await server.start()
    print(f"serving gRPC on {address}", file=sys.stderr, flush=True)

    async def tell() -> None:
        while not state.phase.draining:
            await asyncio.sleep(_LOOK_EVERY_S)
        await server.drain()

    telling = asyncio.create_task(tell())
    try:
        yield
    finally:
        telling.cancel()
        await server.drain()
        await server.stop(config.drain_timeout + LAST_ANSWERS_S)
