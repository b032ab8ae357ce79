"""Extras: one per platform distribution, and the fixed ones of pyproject.toml.

In a checkout a platform is the folder next to us, elsewhere the distribution of our version.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Extras(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        # hatchling run on its own (`hatch build`) has not loaded build_backend: then it is a
        # checkout, and an sdist made that way would name folders.
        backend = sys.modules.get("build_backend")
        for_index = backend is not None and backend.building_for_index()
        platforms: list[str] = self.config["platforms"]
        extras: dict[str, list[str]] = dict(self.config["extras"])
        beside: dict[str, list[str]] = self.config.get("beside", {})
        for name in platforms:
            folder = Path(self.root) / "platforms" / name
            if not for_index and (folder / "pyproject.toml").is_file():
                names = [name, *beside.get(name, [])]
                extras[name] = [f"allmetal-{n} @ {(folder.parent / n).as_uri()}" for n in names]
            else:
                extras[name] = [f"allmetal-{name}=={metadata['version']}"]
        metadata["optional-dependencies"] = extras
