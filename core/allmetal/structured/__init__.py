"""Outputs that keep to a schema, a pattern or a grammar; what checks them comes from plugins."""

from __future__ import annotations
