"""Parsers of the main families of models."""

from __future__ import annotations
