"""The work of one rank: a step plan in, sampled tokens out.

`launch` never waits for the device: a sampled token is written into the sequences' state, where
the next step finds it, and comes to the host only to be reported.

Legend: T tokens, R sampled rows, C channels, V vocabulary.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from allmetal.executor.contract import SequenceStart, StepOutput, StepPlan, TokenMasks
from allmetal.platform.contract import Device
from allmetal.platform.kv import CacheLayout
from allmetal.platform.plan import Decision, Plan
from allmetal.platform.select import Kernels
from allmetal.platform.specs import DecodeStateSpec, SamplingSpec
from allmetal.request import Logprobs
from allmetal.runner.caches import allocate_caches
from allmetal.runner.graphs import (
    DecodeGraphs,
    MixedGraphs,
    Replayed,
    StepGraphs,
    record_steps,
)
from allmetal.runner.inputs import InputBuilder, StepInputs
from allmetal.runner.padding import Padding
from allmetal.runner.prompt_logprobs import PromptLogprobs
from allmetal.runner.rehearsal import rehearse
from allmetal.runner.sampler.logprobs import RowLogprobs
from allmetal.runner.sampler.params import DRAWS, FILTERS
from allmetal.runner.sampler.sampler import Sampled, Sampler
from allmetal.runner.state import SequenceState
from allmetal.runner.transfer import Download, Downloader, Uploader
from allmetal_models.base import CausalLM

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class LaunchedStep:
    """A step whose result may still be on its way.  `collect` may be called once."""

    step_id: int
    words: torch.Tensor | Download  # token ids, then each of `logprobs` packed
    num_tokens: int
    num_rows: int  # token ids among `words`: the rest is padding
    sampled: RowLogprobs | None
    sampled_rows: list[int]
    prompt: list[tuple[int, RowLogprobs]]  # (slot, its entries)

    def done(self) -> bool:
        return isinstance(self.words, torch.Tensor) or self.words.done()

    def collect(self) -> StepOutput:
        words = self.words
        values: list[int] = words.tolist() if isinstance(words, torch.Tensor) else words.words()
        token_ids, rest = values[: self.num_tokens], values[self.num_rows :]
        logprobs: list[Logprobs | None] | None = None
        if self.sampled is not None:
            by_row: list[Logprobs | None] = [None] * self.num_tokens
            entries = self.sampled.unpack(rest[: self.sampled.num_words])
            rest = rest[self.sampled.num_words :]
            for row, entry in zip(self.sampled_rows, entries, strict=True):
                if row >= 0:
                    by_row[row] = entry
            logprobs = by_row
        prompt: dict[int, list[Logprobs]] = {}
        for slot, rows in self.prompt:
            prompt.setdefault(slot, []).extend(rows.unpack(rest[: rows.num_words]))
            rest = rest[rows.num_words :]
        return StepOutput(
            step_id=self.step_id, token_ids=token_ids, logprobs=logprobs, prompt_logprobs=prompt
        )


@dataclass(slots=True, kw_only=True)
class Forwarded:
    """A step whose tokens are still to be chosen: replayed with its graphs, or computed."""

    step: StepPlan
    replayed: tuple[DecodeGraphs, Replayed] | None = None
    computed: tuple[StepInputs, torch.Tensor] | None = None
    prompt: list[tuple[int, RowLogprobs]] = field(default_factory=list)


class ModelRunner:
    """Runs steps of `model` on `device`.  Not thread-safe: one thread makes all calls."""

    def __init__(
        self,
        plan: Plan,
        device: Device,
        model: CausalLM,
        kernels: Kernels,
        *,
        compile_ahead: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        """`compile_ahead`: the platform's, see `allmetal.platform.ahead`."""
        self._plan = plan
        self._compile_ahead = compile_ahead
        self._device = device
        self._model = model
        self._target = torch.device(device.torch_device)
        self._op = kernels.bind(SamplingSpec(vocab_size=model.vocab_size))
        self._kernels = kernels
        self._graphs = StepGraphs()
        self._uploader = Uploader(device)
        self._downloader = Downloader(device) if device.asynchronous else None

    @torch.inference_mode()
    def allocate(self, layout: CacheLayout) -> Sequence[Decision]:
        """Take the cache's memory and all that steps need beside it, and record what the plan has
        recorded.  Returns what came out otherwise."""
        plan, model = self._plan, self._model
        model.bind_caches(*allocate_caches(layout, model.attention_ops, self._target))
        self._state = SequenceState(
            num_slots=plan.max_num_seqs,
            max_model_len=plan.max_model_len,
            num_groups=len(layout.groups),
            block_size=layout.block_size,
            device=self._target,
            padding=Padding(static=plan.static_shapes),
        )
        self._inputs = InputBuilder(self._state, self._uploader, plan.max_num_batched_tokens)
        self._sampler = Sampler(self._state, self._uploader, self._op, model.vocab_size)
        self._prompt_logprobs = PromptLogprobs(self._state, model, self._uploader)
        return self._record(plan)

    def release(self) -> None:
        """Let go of all that `allocate` took, if anything; it may be called again."""
        nothing = torch.empty(0, device=self._target)
        count = len(self._model.attention_ops)
        self._model.bind_caches([nothing] * count, [0] * count)
        self._graphs = StepGraphs()
        for name in ("_state", "_inputs", "_sampler", "_prompt_logprobs"):
            vars(self).pop(name, None)

    def _record(self, plan: Plan) -> Sequence[Decision]:
        if not plan.graph_sizes and self._compile_ahead is None:
            return ()
        model, state, uploader = self._model, self._state, self._uploader
        decode = DecodeGraphs(
            model=model,
            state=state,
            decode_state=self._kernels.bind(DecodeStateSpec(block_size=plan.block_size)),
            sampling=self._op,
            uploader=uploader,
        )
        mixed = MixedGraphs(model=model, state=state, uploader=uploader)
        if self._compile_ahead is not None:
            try:
                self._compile_ahead(partial(rehearse, plan, model, self._inputs, decode, mixed))
            except Exception as error:  # whatever a kernel makes of it
                log.info("kernels are compiled when they are first used: %s", error)
        if not plan.graph_sizes:
            return ()
        self._graphs, later = record_steps(plan, self._device.graphs, decode, mixed)
        return later

    def execute(self, step: StepPlan) -> StepOutput:
        return self.launch(step).collect()

    def launch(self, step: StepPlan) -> LaunchedStep:
        return self.choose(self.forward(step))

    @torch.inference_mode()
    def forward(self, step: StepPlan) -> Forwarded:
        """All of a step but the choice of tokens, which comes before the next step."""
        for start in step.starts:
            self._start(start)
        decode, mixed = self._graphs.decode, self._graphs.mixed
        if decode is not None and (replayed := decode.replay(step)) is not None:
            return Forwarded(step=step, replayed=(decode, replayed))
        prepared = None if mixed is None else mixed.replay(step)
        inputs, hidden = self._compute(step) if prepared is None else prepared
        prompt = self._prompt_logprobs(step, inputs, hidden)
        return Forwarded(step=step, computed=(inputs, hidden), prompt=prompt)

    @torch.inference_mode()
    def choose(self, forwarded: Forwarded, masks: TokenMasks | None = None) -> LaunchedStep:
        """The tokens of a step, within `masks`."""
        sampled: Sampled | None
        if forwarded.replayed is not None:
            sampled = self._choose(*forwarded.replayed, masks)
        else:
            assert forwarded.computed is not None
            sampled = self._sample(*forwarded.computed, masks)
        return self._report(forwarded.step, sampled, forwarded.prompt)

    def _compute(self, step: StepPlan) -> tuple[StepInputs, torch.Tensor]:
        """The hidden states [T, C] of a step that is not recorded."""
        batch, inputs = self._inputs.build(step)
        return inputs, self._model.forward(batch)

    def _start(self, start: SequenceStart) -> None:
        self._sampler.start(start)
        self._prompt_logprobs.start(start)

    def _choose(self, graphs: DecodeGraphs, step: Replayed, masks: TokenMasks | None) -> Sampled:
        """The tokens of a replayed step: its own, unless a row needs more than its argmax."""
        rows, need = step.rows, self._sampler.needs(step.rows)
        token_ids: torch.Tensor | None = None
        if masks is not None and masks.slots:
            pass
        elif not need:
            token_ids = step.token_ids
        elif not need & ~DRAWS:
            token_ids = graphs.draw(step, filtered=bool(need & FILTERS))
        if token_ids is not None:
            # Without a copy on its way to the host, the next replay would change them.
            kept = token_ids.clone() if self._downloader is None else token_ids
            return Sampled(token_ids=kept)
        sampled = self._sampler(step.logits, rows, masks)
        self._state.write_tokens(rows.slots, rows.positions, sampled.token_ids)
        return sampled

    def _sample(
        self, inputs: StepInputs, hidden: torch.Tensor, masks: TokenMasks | None
    ) -> Sampled | None:
        rows = inputs.samples
        if rows is None:
            return None
        if rows.hidden is not None:
            hidden = hidden.index_select(0, rows.hidden)
        sampled = self._sampler(self._model.logits(hidden), rows, masks)
        self._state.write_tokens(rows.slots, rows.positions, sampled.token_ids)
        return sampled

    def _report(
        self, step: StepPlan, sampled: Sampled | None, prompt: list[tuple[int, RowLogprobs]]
    ) -> LaunchedStep:
        logprobs = None if sampled is None else sampled.logprobs
        parts = [] if sampled is None else [sampled.token_ids]
        if logprobs is not None:
            parts.append(logprobs.pack())
        parts += [rows.pack() for _, rows in prompt]
        words = parts[0] if len(parts) == 1 else self._join(parts)
        return LaunchedStep(
            step_id=step.step_id,
            words=words if self._downloader is None else self._downloader.fetch(words),
            num_tokens=0 if sampled is None else sum(step.samples),
            num_rows=0 if sampled is None else sampled.token_ids.shape[0],
            sampled=logprobs,
            sampled_rows=[] if sampled is None else sampled.logprob_rows,
            prompt=prompt,
        )

    def _join(self, parts: list[torch.Tensor]) -> torch.Tensor:
        if parts:
            return torch.cat(parts)
        return torch.empty(0, dtype=torch.int64, device=self._target)
