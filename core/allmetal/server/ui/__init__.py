"""The page at `/`: plain HTML, style sheets and modules, and what they ask beyond the APIs."""

from __future__ import annotations
