"""The op families: a frozen spec that says the problem, and the callable that solves it.

Dtypes are torch's names as strings.  `platform/reference` holds a pure torch kernel for every
spec here; it defines what is right.  A family that is not needed yet is named in `FAMILIES` and
gets its spec with its first user.

Activations that an op is given may be views: rows at any distance, channels side by side.  An op
leaves its inputs alone unless its protocol says otherwise, and remembers nothing between calls.

Legend: T tokens, H query heads, K key-value heads, D head dim, C channels, N outputs, E experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    import torch

    from allmetal.platform.batch import AttentionBatch

FAMILIES: Mapping[str, str] = {
    "attention": "paged attention over a mixed batch of prefill and decode",
    "attention_input": "split QKV, QK norm, rotary embedding, cache write, in one",
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


# ---- attention -----------------------------------------------------------------------------

KVLayout: TypeAlias = str
"""Axes of a layer's cache.  "nhd" is [blocks, 2, block_size, K, D] and "hnd" is
[blocks, 2, K, block_size, D]; the reference reads and writes both.  A kernel may name a layout of
its own when its platform also brings an `attention_input` for it.  Axis 0 is always the block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """softmax(soft_cap(scale * q k^T) + causal and window mask) v, per sequence, over the cache.

    `window`: a query at position p sees positions p - window + 1 .. p.
    `soft_cap`: c * tanh(x / c) on the scaled scores.  `sinks`: one learned logit a head joins
    the denominator.
    """

    family: ClassVar[str] = "attention"
    dtype: str
    kv_dtype: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    scale: float
    window: int | None = None
    soft_cap: float | None = None
    sinks: bool = False


class AttentionOp(Protocol):
    """q [T, H, D] -> out [T, H, D]; keys and values of all T tokens are already in `cache`.

    Slots no query may see (past seq_lens, before the window, other blocks) can hold anything,
    NaN included, and never reach the output.
    """

    @property
    def kv_layout(self) -> KVLayout: ...
    def cache_shape(self, num_blocks: int) -> tuple[int, ...]: ...
    def __call__(
        self,
        q: torch.Tensor,
        cache: torch.Tensor,
        batch: AttentionBatch,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionInputSpec:
    """From the fused projection to attention's input.

    `qk_norm`: RMS norm of q and k before rotation, per head ("head", weights [D]) or over all
    heads ("full", weights [H * D] and [K * D]).  The norm's weight is `weight + norm_offset`.
    `rotary_dim`: leading channels of each head that rotate, 0 for none; `interleaved` pairs
    channels (0, 1), (2, 3) .. instead of (i, i + rotary_dim / 2).  A narrower `kv_dtype` is a
    saturating cast without scales.
    """

    family: ClassVar[str] = "attention_input"
    dtype: str
    kv_dtype: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    kv_layout: KVLayout
    rotary_dim: int
    interleaved: bool = False
    qk_norm: Literal["none", "head", "full"] = "none"
    norm_eps: float = 1e-6
    norm_offset: float = 0.0


class AttentionInputOp(Protocol):
    """qkv [T, (H + 2 K) * D] -> q [T, H, D] contiguous; keys and values go to `cache`.

    `cos_sin` is [max_positions, rotary_dim] float32: cosines then sines, each rotary_dim / 2.
    """

    def __call__(
        self,
        qkv: torch.Tensor,
        positions: torch.Tensor,
        cos_sin: torch.Tensor | None,
        cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        q_weight: torch.Tensor | None = None,
        k_weight: torch.Tensor | None = None,
    ) -> torch.Tensor: ...


# ---- linear --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseWeight:
    """`weight` [N, C] in `dtype`."""

    kind: ClassVar[str] = "dense"
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFWeight:
    """`weight` [N, bytes] uint8: rows of GGML blocks along C.  Source: the ggml format tables."""

    kind: ClassVar[str] = "gguf"
    type: str  # "Q4_0", "Q4_K", ...


@dataclass(frozen=True, slots=True, kw_only=True)
class IntWeight:
    """`weight` [N, C] int8 holding `bits`-bit values, `scale` [N, C / group_size] float32.

    `group_size` 0 is one scale a row.  Symmetric: value * scale.
    `act_dtype` "int8": activations are quantised per token while running; else weight only.
    """

    kind: ClassVar[str] = "int"
    bits: int = 8
    group_size: int = 0
    act_dtype: str | None = None


WeightFormat: TypeAlias = DenseWeight | GGUFWeight | IntWeight


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearSpec:
    """y = x W^T + b with W [N, C] stored as `weight` says; x and y are of `dtype`."""

    family: ClassVar[str] = "linear"
    dtype: str
    in_features: int
    out_features: int
    bias: bool
    weight: WeightFormat


PackedWeight: TypeAlias = object
"""A weight in a kernel's own layout: only the op that packed it reads it."""


class LinearOp(Protocol):
    """x [T, C] -> y [T, N]."""

    def pack(self, weights: Mapping[str, torch.Tensor]) -> PackedWeight:
        """Checkpoint layout to kernel layout, once at load; may keep or copy the tensors."""
        ...

    def __call__(
        self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None
    ) -> torch.Tensor: ...


# ---- elementwise ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RMSNormSpec:
    """y = x / sqrt(mean(x^2) + eps) * (weight + offset), computed in float32.

    With `residual`, s = x + residual comes first and is returned beside y.
    `cast_before_weight`: the normalised value is rounded to `dtype` before the weight is applied
    (families that state the norm so get bit-equal results).
    """

    family: ClassVar[str] = "rms_norm"
    dtype: str
    dim: int
    eps: float
    offset: float = 0.0
    residual: bool = False
    cast_before_weight: bool = False


class RMSNormOp(Protocol):
    """x [T, C] -> (y [T, C], s [T, C]); without residual s is x itself."""

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]: ...


Activation: TypeAlias = Literal["silu", "gelu", "gelu_tanh", "relu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedActivationSpec:
    """act(x[:, :dim]) * x[:, dim:]."""

    family: ClassVar[str] = "gated_activation"
    dtype: str
    dim: int
    activation: Activation


class GatedActivationOp(Protocol):
    """x [T, 2 * dim] -> y [T, dim]."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


# ---- routed experts ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Which experts a token goes to, and what each counts: from its router logits, in float32.

    Scores are the softmax or sigmoid of the logits.  The `top_k` highest are chosen, of the best
    `top_groups` of `num_groups` equal groups of neighbours, a group being worth its two highest;
    with `correction` a learned bias joins the scores for the choice alone.  The chosen scores,
    over their sum if `renormalize`, times `scale` are the weights.
    """

    top_k: int
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    renormalize: bool = True
    correction: bool = False
    num_groups: int = 1
    top_groups: int = 1
    scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MoESpec:
    """y = sum over a token's experts of weight * down(act(gate(x)) * up(x)).

    `gate_up` and `down` say how the experts' weights are stored, as a linear layer's are, with
    the E experts in front of every axis: gate above up [E, 2 * intermediate_size, hidden_size],
    and [E, hidden_size, intermediate_size].
    """

    family: ClassVar[str] = "moe"
    dtype: str
    num_experts: int
    hidden_size: int
    intermediate_size: int
    activation: Activation
    routing: Routing
    gate_up: WeightFormat
    down: WeightFormat


class MoEOp(Protocol):
    """x [T, C], router logits [T, E] of x's dtype or float32 -> y [T, C]."""

    def pack(
        self, gate_up: Mapping[str, torch.Tensor], down: Mapping[str, torch.Tensor]
    ) -> PackedWeight:
        """Checkpoint layout to kernel layout, once at load; may keep or copy the tensors."""
        ...

    def __call__(
        self,
        x: torch.Tensor,
        logits: torch.Tensor,
        weight: PackedWeight,
        correction: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """`correction` [E] float32 is there where the routing says so."""
        ...


# ---- sampling ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSpec:
    """Choice of one token a row from processed logits, with temperature, top-k/p and min-p."""

    family: ClassVar[str] = "sampling"
    vocab_size: int


class SamplingOp(Protocol):
    """logits [B, V] float32 -> token ids [B] int64.  Logits may be overwritten, unless all rows
    are greedy.

    `temperature` [B] float32 (0 is greedy), `top_k` [B] int32 (0 is off), `top_p` and `min_p`
    [B] float32, `uniform` [B] float32 in [0, 1): the row's only randomness, so that a row's
    result does not depend on its neighbours.  The None of an option says that no row uses it; no
    temperature means that all rows are greedy.

    Filters run in the order temperature, min-p, top-k, top-p, each on what the one before left;
    tokens as likely as the last one kept stay.  The token drawn is the first, in vocabulary
    order, whose cumulative share of the remaining probability exceeds `uniform`.
    """

    def __call__(
        self,
        logits: torch.Tensor,
        temperature: torch.Tensor | None,
        top_k: torch.Tensor | None,
        top_p: torch.Tensor | None,
        min_p: torch.Tensor | None,
        uniform: torch.Tensor | None,
    ) -> torch.Tensor: ...


# ---- decode state --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeStateSpec:
    """A decode step's inputs from the sequences' state on the device, and its tokens back to it."""

    family: ClassVar[str] = "decode_state"
    block_size: int


class DecodeStateOp(Protocol):
    """The state of S slots is tokens [S, L] int32 and block tables [G, S, P] int32.

    words [2 + G, B] int64 says for B sequences with one new token each: their slots; their
    lengths, this token included; and of each KV group the block that the token opens, 0 if it
    opens none.  Rows of padding may share a slot, and agree then.
    """

    def read(
        self, words: torch.Tensor, tokens: torch.Tensor, tables: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Notes opened blocks in `tables`.  Returns token_ids [B] int64, positions [B] int64,
        seq_lens [B] int32, block_tables [G, B, P] int32 and slot_mappings [G, B] int64, the last
        two as `AttentionBatch` has them."""
        ...

    def write(
        self,
        words: torch.Tensor,
        tokens: torch.Tensor,
        token_ids: torch.Tensor,
        logits: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """tokens[slot, length] = token_ids [B] int64 of each sequence, or 0 for one below 0.

        Returns token_ids.  Where `logits` [B, V] float32 are given they are checked first: a token
        outside of V, or whose logit is no finite number, becomes -1.
        """
        ...
