"""What is known without asking a platform plugin, which may not even be installed: hardware that
was seen, and the torch that drives it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareHint:
    """`platform` is the plugin (and extra) that would drive it; `seen` says what and where."""

    platform: str
    seen: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchNeed:
    """The torch a platform computes with.  `build`: a name in torch's version.py that is set where
    torch was built for it.  `extension`: a distribution that must be beside it.  `install`: what to
    type to get both."""

    platform: str
    install: str
    build: str = ""
    extension: str = ""
