"""Load for servers: who asks what and when, and what they feel of it.  Any OpenAI-style server."""

from __future__ import annotations
