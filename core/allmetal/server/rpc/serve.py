"""The gRPC server beside the HTTP one, in the same loop."""

from __future__ import annotations

from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from allmetal.config import ServerConfig
from allmetal.errors import ConfigError
from allmetal.server.middleware.auth import api_keys
from allmetal.server.rpc.messages import SERVICE, pool
from allmetal.server.rpc.service import EngineService
from allmetal.server.state import ServerState

_NAMES = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)


class GrpcServer:
    """Answers on `config.grpc_port` from `start` to `stop`."""

    def __init__(self, state: ServerState, config: ServerConfig) -> None:
        self._config = config
        self._health = health.aio.HealthServicer()
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", config.max_body_bytes),
                # Processes that share a port do so because they were told to.
                ("grpc.so_reuseport", int(config.api_processes > 1)),
            ]
        )
        service = EngineService(state, api_keys(config))
        self._server.add_generic_rpc_handlers((service.handlers(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(_NAMES, self._server, pool())

    async def start(self) -> str:
        """The address.  Raises ConfigError if it cannot be had."""
        host = f"[{self._config.host}]" if ":" in self._config.host else self._config.host
        address = f"{host}:{self._config.grpc_port}"
        try:
            port = self._bind(address)
            await self._server.start()
        except (RuntimeError, OSError) as error:
            raise ConfigError(f"cannot serve gRPC on {address}: {error}") from None
        await self._say(health_pb2.HealthCheckResponse.SERVING)
        return f"{host}:{port}"

    def _bind(self, address: str) -> int:
        config = self._config
        if config.tls_cert is None or config.tls_key is None:
            return self._server.add_insecure_port(address)
        authorities = None if config.tls_client_ca is None else _read(config.tls_client_ca)
        credentials = grpc.ssl_server_credentials(
            [(_read(config.tls_key), _read(config.tls_cert))],
            root_certificates=authorities,
            require_client_auth=authorities is not None,
        )
        return self._server.add_secure_port(address, credentials)

    async def _say(self, status: int) -> None:
        for name in ("", SERVICE):
            await self._health.set(name, status)

    async def drain(self) -> None:
        """Tell those who ask that they should look elsewhere."""
        await self._say(health_pb2.HealthCheckResponse.NOT_SERVING)

    async def stop(self, grace_s: float) -> None:
        """Take no new call, and give open ones `grace_s`."""
        await self._server.stop(grace_s)


def _read(path: str) -> bytes:
    return Path(path).read_bytes()
