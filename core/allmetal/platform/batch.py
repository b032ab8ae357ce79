"""What a forward pass is given: tensors on the device, and the host's copy of the few numbers
that kernels driven from the host need.

Legend: T tokens, B sequences, P blocks a sequence at most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

from allmetal.errors import GraphError

if TYPE_CHECKING:
    import torch


class DeviceOnly(Sequence[int]):
    """Numbers of a recorded step: they change from replay to replay, on the device alone."""

    def __getitem__(self, index: object) -> NoReturn:
        raise GraphError(
            "a kernel reads the sequences' lengths on the host, and a recorded step has them on"
            " the device only"
        )

    def __len__(self) -> NoReturn:
        self.__getitem__(0)


@dataclass(slots=True)
class AtReplay:
    """What a recorded step must be told by the host whenever it is replayed.

    A kernel whose device takes lengths from the host, not from memory, adds a function while it is
    recorded.  Each is called before every replay, in order, with the [B] lengths of that step.
    """

    tells: list[Callable[[Sequence[int]], None]] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class AttentionBatch:
    """One KV group's view of a batch.  Sequences lie one behind the other along T.

    A step that is recorded once and replayed (`contract.GraphCapture`) has a batch whose tensors
    keep their places and shapes and change their contents.  What the host knows of it are bounds:
    `max_query_len`, `max_seq_len` and the width of `block_table` are the largest that can ever be,
    and `host_seq_lens` raises GraphError on any access.  Some tokens are padding: they belong to a
    sequence that reads and writes the null block.  Either each sequence has one new token, and
    `host_query_lens` says so, or nothing is known of them, some have none, and it raises too.
    """

    query_start: torch.Tensor  # [B + 1] int32, where each sequence's tokens begin in T
    seq_lens: torch.Tensor  # [B] int32, tokens in the cache after this step's write
    block_table: torch.Tensor  # [B, P] int32; behind a sequence's end it can hold anything
    slot_mapping: torch.Tensor  # [T] int64, block * block_size + offset of each token's KV
    max_query_len: int
    max_seq_len: int
    host_query_lens: Sequence[int]
    host_seq_lens: Sequence[int]
    at_replay: AtReplay | None = None
    """There in a recorded step of one new token a sequence, also when it is run before that."""
    memo: dict[object, object] = field(default_factory=dict)
    """Kernels keep what they derive once a step (schedules, index lists) under their own key."""


@dataclass(slots=True, kw_only=True)
class Batch:
    """All tokens of one step.  `groups[g]` belongs to the g-th KV group.

    What follows is for models that keep no cache, whose sequences are always whole; see
    AttentionBatch for the first two.  `token_types`: the segment of its text that a token belongs
    to, None where all belong to the first.
    """

    token_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64
    groups: tuple[AttentionBatch, ...]
    query_start: torch.Tensor | None = None
    host_query_lens: Sequence[int] = ()
    token_types: torch.Tensor | None = None  # [T] int64

    @property
    def num_tokens(self) -> int:
        return self.token_ids.shape[0]
