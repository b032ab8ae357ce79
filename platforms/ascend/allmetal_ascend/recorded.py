"""One query a sequence through the fused attention, also in steps that are recorded.

The operator takes lengths on the host, and a recording would keep those of the day it was made.
So in a recording its tasks are a group of their own behind an event, and before each replay they
are written anew, on a stream beside, which records the event when it is done.

Source: torch_npu's own way of doing it, `torch_npu.npu.graphs`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any

import torch

from allmetal.platform.batch import AtReplay, AttentionBatch

Lengths = Callable[[Sequence[int]], list[int]]


def fused_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    batch: AttentionBatch,
    lengths: Lengths,
    options: Mapping[str, Any],
) -> torch.Tensor:
    """q [B, 1, H * D] -> [B, 1, H * D].  `lengths`: from the sequences' to the operator's."""
    ops = torch.ops.npu
    if batch.at_replay is None:
        told = lengths(batch.host_seq_lens)
        out: torch.Tensor = ops.npu_fused_infer_attention_score(
            q, keys, values, **options, actual_seq_lengths_kv=told
        )[0]
        return out
    longest = lengths([batch.max_seq_len] * q.shape[0])
    if not _npu().is_current_stream_capturing():  # run once before it is recorded
        out = ops.npu_fused_infer_attention_score(
            q, keys, values, **options, actual_seq_lengths_kv=longest
        )[0]
        return out
    return _in_a_group(q, keys, values, options, longest, lengths, batch.at_replay)


def _in_a_group(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    options: Mapping[str, Any],
    longest: list[int],
    lengths: Lengths,
    at_replay: AtReplay,
) -> torch.Tensor:
    api, ops = _npu(), torch.ops.npu
    workspace = ops._npu_fused_infer_attention_score_get_max_workspace(
        q, keys, values, **options, actual_seq_lengths_kv=longest
    )
    about = ("input_layout", "block_table", "num_heads", "num_key_value_heads")
    out, rest = ops._npu_fused_infer_attention_score_infer_output(
        q, values, **{name: options[name] for name in about}
    )
    # The recording holds the memory: a reference of ours would keep later layers from using it.
    weak = {name: _weak(value) for name, value in options.items()}
    held = [_weak(x) for x in (q, keys, values, workspace, out, rest)]

    def launch(told: list[int]) -> None:
        q, keys, values, workspace, *outputs = held
        ops.npu_fused_infer_attention_score.out(
            q, keys, values, **weak, actual_seq_lengths_kv=told, workspace=workspace, out=outputs
        )

    stream = api.current_stream()
    event = api.ExternalEvent()
    event.wait(stream)
    event.reset(stream)
    api.graph_task_group_begin(stream)
    try:
        launch(longest)
    finally:
        handle = api.graph_task_group_end(stream)
    beside = _beside(stream.device)

    def tell(seq_lens: Sequence[int], first: bool = not at_replay.tells) -> None:
        if first:  # the replay before may still be reading what is about to be written
            beside.wait_stream(api.current_stream())
        with api.stream(beside):
            api.graph_task_update_begin(beside, handle)
            launch(lengths(seq_lens))
            api.graph_task_update_end(beside)
            event.record(beside)

    at_replay.tells.append(tell)
    made: torch.Tensor = out
    return made


def _weak(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    return import_module("torch_npu")._C._weak_ref_tensor(x)


def _npu() -> Any:
    return torch.npu  # type: ignore[attr-defined]


@cache
def _beside(device: torch.device) -> Any:
    return _npu().Stream(device)
