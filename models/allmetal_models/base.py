"""What the runner sees of a model, and what a model sees of a checkpoint.

Legend: T tokens, N rows that are sampled, C channels, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch

    from allmetal.platform.batch import Batch
    from allmetal.platform.kv import KVSpec
    from allmetal.platform.specs import AttentionOp, WeightFormat
    from allmetal_models.layers.pooling import Pooler


class WeightReader(Protocol):
    """One tensor of a checkpoint, not read yet.

    Both reads take a slice along one dimension and touch only those bytes.  `read` gives what is
    stored (raw uint8 rows for GGML blocks, which can be cut along rows only); `dequantize` gives
    a dense tensor of the logical shape.
    """

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def format(self) -> WeightFormat: ...
    def read(
        self, dim: int | None = None, start: int = 0, length: int | None = None
    ) -> torch.Tensor: ...
    def dequantize(
        self,
        dtype: torch.dtype,
        dim: int | None = None,
        start: int = 0,
        length: int | None = None,
    ) -> torch.Tensor: ...


@runtime_checkable
class ScaleReader(Protocol):
    """Kept beside `WeightReader` by the reader of a matrix that is stored as values and scales."""

    def scale(
        self, dim: int | None = None, start: int = 0, length: int | None = None
    ) -> torch.Tensor:
        """Those of the slice that `read` gives, as its format wants them."""
        ...


@runtime_checkable
class Pools(Protocol):
    """Kept beside `CausalLM` by a model that may be built to give vectors of texts."""

    @property
    def pooler(self) -> Pooler | None:
        """None where it was built to continue texts."""
        ...


class CausalLM(Protocol):
    """A language model that predicts the next token."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def kv_specs(self) -> tuple[KVSpec, ...]:
        """One an attention layer, in the order of the layers; so are the next two."""
        ...

    @property
    def attention_ops(self) -> tuple[AttentionOp, ...]:
        """Each says the shape and layout of its layer's cache."""
        ...

    def bind_caches(self, caches: Sequence[torch.Tensor], groups: Sequence[int]) -> None:
        """Gives every attention layer its cache and the index of its KV group."""
        ...

    @property
    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor of a checkpoint that the model needs, whole, whatever a rank keeps."""
        ...

    def load_weights(self, readers: Iterable[tuple[str, WeightReader]]) -> None:
        """Reads every tensor once.  CheckpointError names what is missing or does not fit."""
        ...

    def forward(self, batch: Batch) -> torch.Tensor:
        """Hidden states [T, C] after the last norm."""
        ...

    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """hidden [N, C] -> [N, V] float32, scaled and capped as the family says; `out` where it
        is given."""
        ...
