"""Logits to tokens: constraints, penalties, sampling, log probabilities."""

from __future__ import annotations
