"""The engine loop: schedule a step, start it, take the results of the one before.

With asynchronous scheduling two steps are under way: while one runs the next is scheduled and
handed over, so the device never waits for this code.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection
from contextlib import closing, suppress
from dataclasses import dataclass

from msgspec.structs import replace

from allmetal.cache.groups import layout_for, max_tokens_held
from allmetal.cache.manager import KVCacheManager
from allmetal.config import EngineConfig, let_threads_sleep
from allmetal.engine.guides import Guides
from allmetal.engine.limits import Limits, check_limits, limits_of
from allmetal.engine.scheduler import Scheduled, Scheduler
from allmetal.engine.sequence import Sequence, seed_of
from allmetal.engine.validate import check_request
from allmetal.errors import ConfigError, DrainingError
from allmetal.executor.contract import NO_TOKEN, Executor, StepFuture, StepOutput
from allmetal.platform.plan import Decision, Plan
from allmetal.platform.render import warning
from allmetal.request import FinishReason, Logprobs, Request, TokenDelta

log = logging.getLogger(__name__)

_NO_TOKEN = (
    "no token can be chosen: all are forbidden, or the model's logits are not finite numbers"
)
_NOT_ALLOWED = "the executor chose a token that the mask forbids"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Counters since the start, and gauges of now.  Tokens, unless the name says otherwise."""

    num_running: int
    num_waiting: int
    kv_usage: float
    num_preemptions: int
    prefix_queries: int
    prefix_hits: int
    prompt_tokens: int
    output_tokens: int


@dataclass(slots=True)
class _Counts:
    prompt: int = 0
    output: int = 0
    requests: int = 0


class Engine:
    """Requests in, token deltas out.  Not thread-safe: one thread owns it."""

    def __init__(self, executor: Executor, limits: Limits, plan: Plan | None = None) -> None:
        self.plan = plan
        self.executor = executor
        self.loaded = executor.load()
        self.layout = layout_for(self.loaded.kv_specs, limits.block_size, self.loaded.kv_bytes)
        self.limits = limits
        self.max_model_len = self._longest_sequence()
        self._amend(executor.allocate(self.layout))
        self.cache = KVCacheManager(self.layout, prefix_caching=limits.prefix_caching)
        self.scheduler = Scheduler(
            self.cache,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            policy=limits.policy,
            whole_texts=self.loaded.pooling is not None and self.loaded.pooling.whole_texts,
        )
        self._depth = 2 if limits.async_scheduling else 1
        self._in_flight: deque[tuple[Scheduled, StepFuture]] = deque()
        self._sequences: dict[str, Sequence] = {}
        self._counts = _Counts()
        self.guides = Guides(executor, self.loaded.vocab_size)
        self.draining = False
        self.sleep_level = 0  # see `asks.EngineState`

    @classmethod
    def from_config(cls, config: EngineConfig) -> Engine:
        """Open the checkpoint, resolve the platform and plan, load.  Raises AllmetalError."""
        let_threads_sleep()
        from allmetal.checkpoint import open_checkpoint
        from allmetal.executor.local import LocalExecutor
        from allmetal.platform.resolve import resolve
        from allmetal.structured.vocabulary import grammar_compiler

        with closing(open_checkpoint(config)) as checkpoint:
            resolved = resolve(config, checkpoint)
        for note in resolved.notes:
            log.warning(note)
        plan = resolved.plan
        executor = resolved.executor or LocalExecutor(config, plan)
        engine = cls(executor, limits_of(config, plan), plan)
        engine.guides.compiler = grammar_compiler(config, engine.loaded.vocab_size)
        return engine

    def _longest_sequence(self) -> int:
        limits = self.limits
        held = max_tokens_held(self.layout, limits.max_num_batched_tokens, limits.max_model_len)
        if held < limits.max_model_len and not limits.shrink_to_memory:
            raise ConfigError(
                f"the cache holds one sequence of {held} tokens, "
                f"but max_model_len is {limits.max_model_len}",
                hint=f"--max-model-len {held}, or more --kv-cache-memory",
            )
        return held

    def _amend(self, later: Collection[Decision]) -> None:
        """Note in the plan, and for the user, what came out otherwise than planned."""
        if self.plan is not None:
            self.plan = self.plan.amended(later)
        for row in later:
            if row.warn:
                log.warning(warning(row))

    # ---- requests --------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Raises RequestError if the request cannot be served; the engine is unchanged then."""
        if self.draining:
            raise DrainingError("no new requests are taken for now", hint="ask again, or elsewhere")
        check_request(request, self.max_model_len, self.loaded.vocab_size, self._sequences)
        waiting = len(self.scheduler.waiting) - self.scheduler.num_free_slots
        check_limits(request, self.limits, self.loaded, waiting)
        compiling = self.guides.check(request)
        sampling = request.sampling
        num_prompt = len(request.prompt_token_ids)
        longest = self.max_model_len
        if sampling.max_tokens is not None:
            longest = min(longest, num_prompt + sampling.max_tokens)
        if request.pooling is not None:
            longest = num_prompt + 1  # as if its vector were a token: nothing comes after it
        eos = () if sampling.ignore_eos else request.eos_token_ids
        order = self._counts.requests
        self._counts.requests += 1
        self._counts.prompt += num_prompt
        seq = Sequence(
            request=request,
            token_ids=list(request.prompt_token_ids),
            tables=self.cache.open(request.cache_salt),
            order=order,
            seed=seed_of(self.limits.seed, order) if sampling.seed is None else sampling.seed,
            max_tokens=longest,
            stop_ids=frozenset((*eos, *sampling.stop_token_ids)),
            first_output_at=num_prompt,
            min_length=num_prompt + sampling.min_tokens,
        )
        self._sequences[request.request_id] = seq
        if self.guides.admit(seq, compiling):
            self.scheduler.add(seq)

    @property
    def open_requests(self) -> list[str]:
        """Ids of all that runs or waits."""
        return list(self._sequences)

    def abort(self, request_ids: list[str]) -> list[TokenDelta]:
        """End these requests now.  Unknown ids (finished meanwhile) are passed over."""
        return [
            self._end(seq, "abort")
            for request_id in request_ids
            if (seq := self._sequences.get(request_id)) is not None
        ]

    @property
    def has_work(self) -> bool:
        return bool(self._in_flight) or (bool(self._sequences) and self.scheduler.can_run)

    # ---- the loop --------------------------------------------------------------------------

    def step(self) -> list[TokenDelta]:
        """Advance.  Returns what the oldest step under way brought, or nothing while the pipeline
        fills."""
        refused = self._admit_compiled() if self.guides.compiling else []
        scheduled = None
        if len(self._in_flight) < self._depth:
            scheduled = self.scheduler.schedule()
        if scheduled is not None:
            self._in_flight.append((scheduled, self.executor.execute(scheduled.plan)))
            if scheduled.plan.masked and len(self._in_flight) == 1:
                self.guides.mask(scheduled)
        if not self._in_flight or (scheduled is not None and len(self._in_flight) < self._depth):
            if self.guides.compiling and not self._in_flight:
                self.guides.wait()
            return refused
        return refused + self._take_oldest()

    def _admit_compiled(self) -> list[TokenDelta]:
        """Let those run whose constraint is compiled, and end those whose is wrong."""
        may_run, wrong = self.guides.ready()
        for seq in may_run:
            self.scheduler.add(seq)
        return [replace(self._end(seq, "error"), refusal=refusal) for seq, refusal in wrong]

    def _take_oldest(self) -> list[TokenDelta]:
        oldest, future = self._in_flight[0]  # stays there if the wait is interrupted
        try:
            output = future.result()
        except Exception as exc:  # whatever a device raises fails its requests, not the engine
            self._in_flight.popleft()
            return self._fail(oldest, exc)
        self._in_flight.popleft()
        deltas = self._take(oldest, output)
        if self._in_flight and (later := self._in_flight[0][0]).plan.masked:
            self.guides.mask(later)
        return deltas

    def settle(self) -> list[TokenDelta]:
        """Take the results of all steps under way, and start none."""
        deltas: list[TokenDelta] = []
        while self._in_flight:
            deltas += self._take_oldest()
        return deltas

    def _take(self, step: Scheduled, output: StepOutput) -> list[TokenDelta]:
        if output.pooled is not None:
            return self._take_pooled(step, output.pooled)
        if output.prompt_logprobs:
            self._note_prompt_logprobs(step, output)
        block_size = self.layout.block_size
        name_blocks = self.scheduler.name_blocks
        deltas: list[TokenDelta] = []
        logprobs = output.logprobs
        for index, (seq, token) in enumerate(zip(step.sampled, output.token_ids, strict=True)):
            if seq.finish_reason is not None:
                continue
            seq.num_pending -= 1
            if token == NO_TOKEN:
                deltas.append(self._end(seq, "error", _NO_TOKEN))
                continue
            token_ids = seq.token_ids
            token_ids.append(token)
            known = len(token_ids)
            computed = seq.num_computed
            if (known if known < computed else computed) // block_size > seq.tables.num_named:
                name_blocks(seq)
            stopped = token in seq.stop_ids and known >= seq.min_length
            if (guide := seq.guide) is not None:
                if not guide.accept(token) and not stopped:
                    deltas.append(self._end(seq, "error", _NOT_ALLOWED))
                    continue
                stopped = stopped or guide.ended
                seq.guide = None if guide.idle else guide
            if (
                stopped
                or known >= seq.max_tokens
                or logprobs is not None
                or known - 1 == seq.first_output_at
            ):
                lp = None if logprobs is None else logprobs[index]
                deltas.append(self._full_delta(seq, token, stopped, [lp] if lp else None))
            else:
                deltas.append(TokenDelta(request_id=seq.request.request_id, token_ids=[token]))
        self._counts.output += len(deltas)
        return deltas

    def _take_pooled(self, step: Scheduled, vectors: list[bytes]) -> list[TokenDelta]:
        """A vector ends its request."""
        deltas = []
        for seq, vector in zip(step.sampled, vectors, strict=True):
            if seq.finish_reason is None:
                self._release(seq, "stop")
                deltas.append(
                    TokenDelta(
                        request_id=seq.request.request_id,
                        token_ids=[],
                        finish_reason="stop",
                        num_cached_tokens=seq.num_cached,
                        queue_s=seq.queue_s,
                        pooled=vector,
                    )
                )
        return deltas

    def _full_delta(
        self, seq: Sequence, token: int, stopped: bool, logprobs: list[Logprobs] | None
    ) -> TokenDelta:
        """A token with all that may come with it: an end, logprobs, the prompt's part."""
        known = len(seq.token_ids)
        reason: FinishReason | None = None
        stop_reason = None
        if stopped:
            reason = "stop"
            stop_reason = None if token in seq.request.eos_token_ids else token
        elif known >= seq.max_tokens:
            reason = "length"
        first = known - 1 == seq.first_output_at
        if reason is not None:
            self._release(seq, reason)
        return TokenDelta(
            request_id=seq.request.request_id,
            token_ids=[token],
            finish_reason=reason,
            stop_reason=stop_reason,
            logprobs=logprobs,
            prompt_logprobs=(seq.prompt_logprobs or None) if first else None,
            num_cached_tokens=seq.num_cached if first else 0,
            queue_s=seq.queue_s if first else 0.0,
        )

    def _note_prompt_logprobs(self, step: Scheduled, output: StepOutput) -> None:
        # By the plan's slots: a sequence that was preempted meanwhile has another one, or none.
        plan = step.plan
        for seq, slot, num_computed in zip(
            step.sequences, plan.slots, plan.num_computed, strict=True
        ):
            entries = output.prompt_logprobs.get(slot)
            if seq.finished or entries is None:
                continue
            if num_computed == 0:  # also when a preempted prompt starts over
                seq.prompt_logprobs = [None]
            seq.prompt_logprobs += entries

    # ---- ends ------------------------------------------------------------------------------

    def _release(self, seq: Sequence, reason: FinishReason) -> None:
        seq.finish_reason = reason
        self.scheduler.finish(seq)
        del self._sequences[seq.request.request_id]

    def _end(self, seq: Sequence, reason: FinishReason, error: str | None = None) -> TokenDelta:
        self._release(seq, reason)
        return TokenDelta(
            request_id=seq.request.request_id, token_ids=[], finish_reason=reason, error=error
        )

    def _fail(self, step: Scheduled, exc: Exception) -> list[TokenDelta]:
        """End every request of a failed step and of those started on top of it.

        What their blocks hold is not known any more, so nothing is reused from before.
        """
        steps = [step]
        while self._in_flight:
            later, future = self._in_flight.popleft()
            steps.append(later)
            _settle(future)
        self.cache.pool.forget_all()
        affected = dict.fromkeys(seq for each in steps for seq in each.sequences)
        error = f"{type(exc).__name__}: {exc}"
        return [self._end(seq, "error", error) for seq in affected if not seq.finished]

    def stats(self) -> EngineStats:
        return EngineStats(
            num_running=len(self.scheduler.running),
            num_waiting=len(self.scheduler.waiting),
            kv_usage=self.cache.pool.usage,
            num_preemptions=self.scheduler.num_preemptions,
            prefix_queries=self.cache.stats.queries,
            prefix_hits=self.cache.stats.hits,
            prompt_tokens=self._counts.prompt,
            output_tokens=self._counts.output,
        )

    def close(self) -> None:
        """Let the steps under way end, then close the executor."""
        while self._in_flight:
            _settle(self._in_flight.popleft()[1])
        self.guides.close()
        self.executor.close()


def _settle(future: StepFuture) -> None:
    with suppress(Exception):  # its requests are being ended already
        future.result()
