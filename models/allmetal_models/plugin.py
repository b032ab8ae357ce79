"""The model types of this distribution."""

from __future__ import annotations

from collections.abc import Mapping

MODELS: Mapping[str, str] = {
    "llama": "allmetal_models.llama:build",
}
