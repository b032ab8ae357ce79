from __future__ import annotations

import socket

import pytest

from allmetal.config import ServerConfig
from allmetal.errors import ConfigError
from allmetal.server.http import bound, url_of


@pytest.mark.parametrize(
    ("host", "shown"), [("127.0.0.1", "http://127.0.0.1:"), ("::1", "http://[::1]:")]
)
def test_answers_do_not_wait_for_the_receipt_of_their_first_half(host: str, shown: str) -> None:
    """asyncio turns Nagle's delay off for sockets that name their protocol; 40 ms an answer."""
    config = ServerConfig(host=host, port=0)
    with bound(config) as listener:
        assert listener.proto == socket.IPPROTO_TCP
        assert url_of(listener, config).startswith(shown)


def test_an_address_that_is_taken_is_an_error_with_a_hint() -> None:
    with bound(ServerConfig(port=0)) as taken:
        taken.listen()
        with pytest.raises(ConfigError, match=r"cannot listen on 127\.0\.0\.1 port") as error:
            bound(ServerConfig(port=taken.getsockname()[1]))

    assert error.value.hint == "--port 0 takes a free one"
