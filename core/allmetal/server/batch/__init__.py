"""OpenAI's batch files, answered by the engine without a server."""

from __future__ import annotations
