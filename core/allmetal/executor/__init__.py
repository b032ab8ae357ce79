"""Seam 1: how a step plan becomes tokens."""
