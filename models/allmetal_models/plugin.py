"""The built-in model types, announced as a stranger's plugin announces its own.  No torch here."""

from __future__ import annotations

from collections.abc import Mapping

from allmetal.plugins.hookspecs import hookimpl

MODELS: Mapping[str, str] = {
    "bert": "allmetal_models.bert:build",
    "gemma": "allmetal_models.gemma:build",
    "gemma2": "allmetal_models.gemma2:build",
    "gemma3": "allmetal_models.gemma3:build",
    "gemma3_text": "allmetal_models.gemma3:build",
    "glm4": "allmetal_models.glm4:build",
    "glm4_moe": "allmetal_models.glm4_moe:build",
    "granite": "allmetal_models.granite:build",
    "llama": "allmetal_models.llama:build",
    "mistral": "allmetal_models.mistral:build",
    "mixtral": "allmetal_models.mixtral:build",
    "olmo2": "allmetal_models.olmo2:build",
    "olmo3": "allmetal_models.olmo2:build",
    "olmoe": "allmetal_models.olmoe:build",
    "phi3": "allmetal_models.phi3:build",
    "qwen2": "allmetal_models.qwen2:build",
    "qwen2_moe": "allmetal_models.qwen2_moe:build",
    "qwen3": "allmetal_models.qwen3:build",
    "qwen3_moe": "allmetal_models.qwen3_moe:build",
    "roberta": "allmetal_models.bert:build",
    "smollm3": "allmetal_models.smollm3:build",
    "xlm-roberta": "allmetal_models.bert:build",
}


@hookimpl
def allmetal_models() -> Mapping[str, str]:
    return MODELS
