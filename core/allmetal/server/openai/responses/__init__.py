"""OpenAI's Responses API: items in, items out, kept for the next turn; on `server.dialogue`."""

from __future__ import annotations
