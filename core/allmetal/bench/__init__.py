"""Measurements, each stamped with the plan and the machine that it was taken on."""

from __future__ import annotations
