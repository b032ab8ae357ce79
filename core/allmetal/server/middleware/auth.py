"""API keys."""

from __future__ import annotations

import hmac
from collections.abc import Collection, Mapping
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from allmetal.config import ServerConfig
from allmetal.errors import ConfigError
from allmetal.server import errors

# Those who watch a server are not given its keys.
OPEN_PATHS = frozenset({"/", "/health", "/ready", "/metrics", "/version", "/openapi.json"})


def api_keys(config: ServerConfig) -> list[str]:
    """All keys that were given.  Raises ConfigError if the file of keys cannot be used."""
    if config.api_key_file is None:
        return list(config.api_key)
    try:
        lines = Path(config.api_key_file).read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read --api-key-file {config.api_key_file}: {error}") from None
    keys = [key for line in lines if (key := line.strip()) and not key.startswith("#")]
    if not keys:
        raise ConfigError(
            f"--api-key-file {config.api_key_file} holds no key",
            hint="write one a line; lines that start with # are comments",
        )
    return [*config.api_key, *keys]


class ApiKey:
    """Lets nobody without one of the keys past the open paths.

    A key comes as OpenAI's clients send it (`Authorization: Bearer KEY`) or as Anthropic's do
    (`X-Api-Key: KEY`).
    """

    def __init__(self, app: ASGIApp, keys: Collection[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._may_pass(scope):
            error = errors.WrongKeyError("the API key is missing or wrong")
            await errors.response(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _may_pass(self, scope: Scope) -> bool:
        if scope["path"] in OPEN_PATHS or scope["path"].startswith("/ui/"):
            return True
        given = _given(dict(scope["headers"]))
        # Each is compared, in a time that does not tell how much of it was right.
        fits = [hmac.compare_digest(given, key) for key in self._keys]
        return any(fits)


def _given(headers: Mapping[bytes, bytes]) -> bytes:
    kind, _, key = headers.get(b"authorization", b"").partition(b" ")
    if kind.lower() == b"bearer":
        return key.strip()
    return headers.get(b"x-api-key", b"")
