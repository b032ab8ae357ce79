"""Anthropic's Messages API, a translation of `server.dialogue`."""

from __future__ import annotations
