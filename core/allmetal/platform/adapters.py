"""Platforms written for the contract before this one, made to keep this one.

A change that breaks the contract bumps `CONTRACT_VERSION` and puts an adapter here, which stays
until the next bump: a plugin has that long to follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from allmetal.platform.contract import CONTRACT_VERSION, Platform, Unsupported

Adapter: TypeAlias = Callable[[Any], Platform]

ADAPTERS: Mapping[int, Adapter] = {}
"""Contract version -> wraps a platform that keeps it.  Contract 1 is the first: none is before."""


def adapt(platform: Any, adapters: Mapping[int, Adapter] = ADAPTERS) -> Platform | Unsupported:
    """The platform as one that keeps CONTRACT_VERSION, or why it cannot be had as one."""
    version = platform.contract_version
    if version == CONTRACT_VERSION:
        adapted = platform
    elif version in adapters:
        adapted = adapters[version](platform)
    else:
        return Unsupported(_other_version(version))
    lacking = [member for member in _MEMBERS if not hasattr(adapted, member)]
    if lacking:
        return Unsupported(
            f"it says that it keeps contract {version}, and has no {', '.join(lacking)}"
        )
    ours: Platform = adapted
    return ours


def remedy(version: object, plugin: str, core: str) -> str:
    """What to type where `adapt` refused a plugin of that contract."""
    newer = isinstance(version, int) and version > CONTRACT_VERSION
    return f"pip install --upgrade {core if newer else plugin}"


_MEMBERS = sorted(name for name in (*vars(Platform), *Platform.__annotations__) if name[0] != "_")


def _other_version(version: object) -> str:
    why = f"it keeps contract {version}, and this core keeps {CONTRACT_VERSION}"
    if isinstance(version, int) and version > CONTRACT_VERSION:
        return f"{why}: upgrade allmetal"
    return f"{why}: upgrade the plugin"
