"""HTTPS."""

from __future__ import annotations

import ssl
from typing import Any

from allmetal.config import ServerConfig
from allmetal.errors import ConfigError


def tls_options(config: ServerConfig) -> dict[str, Any]:
    """uvicorn's, after a look at the files.  Raises ConfigError for one that cannot be used."""
    if config.tls_cert is None:
        return {}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _try(context.load_cert_chain, config.tls_cert, config.tls_key)
    options = {"ssl_certfile": config.tls_cert, "ssl_keyfile": config.tls_key}
    if config.tls_client_ca is None:
        return options
    _try(context.load_verify_locations, config.tls_client_ca)
    return {**options, "ssl_ca_certs": config.tls_client_ca, "ssl_cert_reqs": ssl.CERT_REQUIRED}


def _try(load: Any, *files: str | None) -> None:
    try:
        load(*files)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"cannot serve HTTPS with {' and '.join(filter(None, files))}: {error}",
            hint="the files are PEM: the certificate first, then those that signed it",
        ) from None
