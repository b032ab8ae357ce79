"""What is known of the request at hand, wherever its work is done."""

from __future__ import annotations

from contextvars import ContextVar

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""As the client or we named it; "" outside of a request."""

anthropic: ContextVar[bool] = ContextVar("anthropic", default=False)
"""Whether the client speaks that API, which has errors of another shape."""

trace_parent: ContextVar[str] = ContextVar("trace_parent", default="")
"""The caller's span, as W3C's `traceparent` header names it."""

keep_alive_s: ContextVar[float] = ContextVar("keep_alive_s", default=0.0)
"""The longest silence of a stream; 0: any."""
