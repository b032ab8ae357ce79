"""Hardware that was seen without asking a platform plugin, which may not even be installed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareHint:
    """`platform` is the plugin (and extra) that would drive it; `seen` says what and where."""

    platform: str
    seen: str
