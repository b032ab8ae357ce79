"""The work of one rank that makes vectors of texts: a step plan in, one vector a text out.

Legend: T tokens, B sequences, N values of a vector.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

import torch
from torch.nn import functional

from allmetal.executor.contract import StepOutput, StepPlan
from allmetal.platform.contract import Device
from allmetal.platform.kv import CacheLayout
from allmetal.platform.plan import Decision, Plan
from allmetal.runner.caches import allocate_caches
from allmetal.runner.inputs import InputBuilder
from allmetal.runner.state import SequenceState
from allmetal.runner.transfer import Download, Downloader, Uploader
from allmetal_models.base import CausalLM
from allmetal_models.layers.pooling import Pooler

_WORD = 2
"""float32 values in a word of what comes to the host."""


@dataclass(slots=True, kw_only=True)
class LaunchedPooling:
    """A step whose vectors may still be on their way.  `collect` may be called once."""

    step_id: int
    words: torch.Tensor | Download
    num_vectors: int
    size: int  # values of a vector

    def done(self) -> bool:
        return isinstance(self.words, torch.Tensor) or self.words.done()

    def collect(self) -> StepOutput:
        words = self.words
        values: list[int] = words.tolist() if isinstance(words, torch.Tensor) else words.words()
        raw = array("q", values).tobytes()
        stride, length = 8 * -(-self.size // _WORD), 4 * self.size
        vectors = [raw[i * stride : i * stride + length] for i in range(self.num_vectors)]
        return StepOutput(step_id=self.step_id, token_ids=[0] * len(vectors), pooled=vectors)


class PoolingRunner:
    """Runs steps of `model` on `device`.  Not thread-safe: one thread makes all calls."""

    def __init__(self, plan: Plan, device: Device, model: CausalLM, pooler: Pooler) -> None:
        self._plan, self._model, self._pooler = plan, model, pooler
        self._target = torch.device(device.torch_device)
        self._uploader = Uploader(device)
        self._downloader = Downloader(device) if device.asynchronous else None

    @torch.inference_mode()
    def allocate(self, layout: CacheLayout) -> Sequence[Decision]:
        """Take the cache's memory and all that steps need beside it."""
        plan, model = self._plan, self._model
        if model.kv_specs:
            model.bind_caches(*allocate_caches(layout, model.attention_ops, self._target))
        self._state = SequenceState(
            num_slots=plan.max_num_seqs,
            max_model_len=plan.max_model_len,
            num_groups=len(layout.groups),
            block_size=layout.block_size,
            device=self._target,
        )
        self._inputs = InputBuilder(self._state, self._uploader, plan.max_num_batched_tokens)
        return ()

    def release(self) -> None:
        """Let go of all that `allocate` took, if anything; it may be called again."""
        nothing = torch.empty(0, device=self._target)
        count = len(self._model.attention_ops)
        self._model.bind_caches([nothing] * count, [0] * count)
        for name in ("_state", "_inputs"):
            vars(self).pop(name, None)

    def execute(self, step: StepPlan) -> StepOutput:
        return self.launch(step).collect()

    @torch.inference_mode()
    def launch(self, step: StepPlan) -> LaunchedPooling:
        batch, _ = self._inputs.build(step)
        if any(start.pooling and start.pooling.second_at for start in step.starts):
            batch.token_types = self._token_types(step)
        hidden = self._model.forward(batch)
        assert batch.query_start is not None
        vectors = self._pooler(hidden, batch.query_start.to(torch.int64))
        if not all(step.samples):
            whole = list(compress(range(len(step.samples)), step.samples))
            vectors = vectors[torch.tensor(whole, dtype=torch.int64, device=self._target)]
        padded = functional.pad(vectors, (0, -self._pooler.size % _WORD)).contiguous()
        words = padded.view(torch.int64).flatten()
        return LaunchedPooling(
            step_id=step.step_id,
            words=words if self._downloader is None else self._downloader.fetch(words),
            num_vectors=sum(step.samples),
            size=self._pooler.size,
        )

    def _token_types(self, step: StepPlan) -> torch.Tensor:
        """[T] int64.  Sequences with segments are whole, so all of them start in this step."""
        second = {s.slot: s.pooling.second_at for s in step.starts if s.pooling is not None}
        types = array("q")
        for slot, length in zip(step.slots, step.num_scheduled, strict=True):
            first = min(second.get(slot) or length, length)
            types.extend([0] * first + [1] * (length - first))
        return self._uploader.send(types)
