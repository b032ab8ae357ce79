"""The op families: a frozen spec that says the problem, and the callable that solves it.

Dtypes are torch's names as strings.  `platform/reference` holds a pure torch kernel for every
spec here; it defines what is right.  A family that is not needed yet is named in `FAMILIES` and
gets its spec with its first user.

Activations that an op is given may be views: rows at any distance, channels side by side.  An op
leaves its inputs alone unless its protocol says otherwise, and remembers nothing between calls.
"""

from __future__ import annotations

from collections.abc import Mapping

from allmetal.platform.specs.attention import (
    AttentionInputOp,
    AttentionInputSpec,
    AttentionOp,
    AttentionSpec,
    KVLayout,
    block_axis,
)
from allmetal.platform.specs.decode_state import (
    DecodeStateOp,
    DecodeStateSpec,
)
from allmetal.platform.specs.elementwise import (
    Activation,
    GatedActivationOp,
    GatedActivationSpec,
    RMSNormOp,
    RMSNormSpec,
)
from allmetal.platform.specs.encoder_attention import (
    EncoderAttentionOp,
    EncoderAttentionSpec,
)
from allmetal.platform.specs.linear import (
    DenseWeight,
    Float8Weight,
    GGUFWeight,
    IntWeight,
    LinearOp,
    LinearSpec,
    PackedWeight,
    WeightFormat,
)
from allmetal.platform.specs.moe import (
    MoEOp,
    MoESpec,
    Routing,
)
from allmetal.platform.specs.sampling import (
    SamplingOp,
    SamplingSpec,
)

FAMILIES: Mapping[str, str] = {
    "attention": "paged attention over a mixed batch of prefill and decode",
    "attention_input": "split QKV, QK norm, rotary embedding, cache write, in one",
    "encoder_attention": "attention in both directions within each sequence, without a cache",
    "mla": "multi-head latent attention",
    "sparse_attention": "attention over selected tokens",
    "linear": "matrix products over dense and quantised weights",
    "moe": "routed experts",
    "rms_norm": "root mean square norm, with an optional residual add before it",
    "gated_activation": "act(gate) * up",
    "state_space": "recurrent layers and short convolutions",
    "decode_state": "what decoding sequences own on the device, read and written by a step",
    "sampling": "logits to tokens",
    "lora": "low-rank adapters",
    "kv_copy": "gather and scatter of cache blocks",
    "collective": "communication between ranks",
}

__all__ = [
    "FAMILIES",
    "Activation",
    "AttentionInputOp",
    "AttentionInputSpec",
    "AttentionOp",
    "AttentionSpec",
    "DecodeStateOp",
    "DecodeStateSpec",
    "DenseWeight",
    "EncoderAttentionOp",
    "EncoderAttentionSpec",
    "Float8Weight",
    "GGUFWeight",
    "GatedActivationOp",
    "GatedActivationSpec",
    "IntWeight",
    "KVLayout",
    "LinearOp",
    "LinearSpec",
    "MoEOp",
    "MoESpec",
    "PackedWeight",
    "RMSNormOp",
    "RMSNormSpec",
    "Routing",
    "SamplingOp",
    "SamplingSpec",
    "WeightFormat",
    "block_axis",
]
