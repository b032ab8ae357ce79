"""Vectors of texts, and what is made of them: embeddings, scores, rankings, labels."""

from __future__ import annotations
