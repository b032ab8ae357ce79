"""Where a model's tensors are once it is loaded: device_types.py MODEL."""

from __future__ import annotations

import gc
import json
import sys

import torch

from allmetal import LLM, SamplingParams
from allmetal_models.layers.attention import Attention
from allmetal_models.layers.norm import AddRMSNorm

torch.set_num_threads(1)
with LLM(sys.argv[1], kv_cache_memory=1 << 22) as llm:
    hidden = []
    plain = AddRMSNorm.__call__

    def watched(self, x, stream):  # type: ignore[no-untyped-def]
        hidden.append(x.device.type)
        return plain(self, x, stream)

    AddRMSNorm.__call__ = watched  # type: ignore[method-assign]
    llm.generate("Once", SamplingParams(max_tokens=2, temperature=0.0))
    layers = gc.get_objects()
    caches = {x._cache.device.type for x in layers if isinstance(x, Attention)}
    weights = {x.weight.device.type for x in layers if isinstance(x, AddRMSNorm)}
    (seen,) = set(hidden)
    print(json.dumps({"cache": sorted(caches), "weights": sorted(weights), "hidden": seen}))
