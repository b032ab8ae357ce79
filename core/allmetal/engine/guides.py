"""Sequences whose tokens are not free: a grammar to keep to, thoughts to bring to an end.

Which tokens may come follows from the one before.  A step is executed before that one is known,
and its masks are handed after it when the step before has brought its tokens; so neither these
sequences nor those beside them wait (see `TakesMasks`).
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import FIRST_COMPLETED, wait

import numpy as np

from allmetal.constraint import Thinking
from allmetal.engine.scheduler import Scheduled
from allmetal.engine.sequence import Sequence
from allmetal.errors import RequestError
from allmetal.executor.contract import Executor, TakesMasks, TokenMasks
from allmetal.request import Refusal, Request
from allmetal.structured.compiler import Compiling, GrammarCompiler
from allmetal.structured.contract import Mask, Matcher

_WAIT_S = 0.005
"""Between two looks at what comes in while nothing but compiling goes on."""


class Guide:
    """Of one sequence.  Thoughts are free but for their budget; what follows keeps to `matcher`."""

    def __init__(self, matcher: Matcher | None, thinking: Thinking | None) -> None:
        self._matcher = matcher
        self._thinking = thinking
        self._thinks = thinking is not None and thinking.open
        self._may_start = thinking is not None and not thinking.open and len(thinking.start) == 1
        self._recent: deque[int] = deque(maxlen=len(thinking.end) if thinking else 0)
        self._num_thoughts = 0
        self._num_forced = 0

    @property
    def idle(self) -> bool:
        """Whether nothing is left to be guided."""
        return self._matcher is None and not (self._thinks or self._may_start)

    @property
    def ended(self) -> bool:
        """Whether nothing may follow."""
        return not self._thinks and self._matcher is not None and self._matcher.ended

    def restrict(self, mask: Mask) -> bool:
        """Write which tokens may come; False: all, and nothing was written."""
        thinking = self._thinking
        if thinking is not None and self._thinks:
            forced = thinking.forced or thinking.end
            over = thinking.budget is not None and self._num_thoughts >= thinking.budget
            if not over:
                return False
            mask.fill(0)
            _allow(mask, forced[self._num_forced])
            return True
        if self._matcher is None:
            return False
        self._matcher.fill(mask)
        if thinking is not None and self._may_start:
            _allow(mask, thinking.start[0])
        return True

    def accept(self, token_id: int) -> bool:
        """Take the token that came; False if it was not allowed."""
        thinking = self._thinking
        if thinking is not None and self._may_start:
            self._may_start = False
            if token_id == thinking.start[0]:
                self._thinks = True
                return True
        if thinking is not None and self._thinks:
            self._think(thinking, token_id)
            return True
        return self._matcher is None or self._matcher.accept(token_id)

    def _think(self, thinking: Thinking, token_id: int) -> None:
        self._recent.append(token_id)
        forced = thinking.forced or thinking.end
        if thinking.budget is not None and self._num_thoughts >= thinking.budget:
            self._num_forced += 1
            if self._num_forced == len(forced):
                self._thinks = False
        else:
            self._num_thoughts += 1
        if tuple(self._recent) == thinking.end and not self._num_forced:
            self._thinks = False


def _allow(mask: Mask, token_id: int) -> None:
    mask.view(np.uint32)[token_id // 32] |= np.uint32(1 << token_id % 32)


class Guides:
    """All of an engine.  `compiler` is None where there is no text to go by."""

    def __init__(self, executor: Executor, vocab_size: int) -> None:
        self.compiler: GrammarCompiler | None = None
        self._executor = executor if isinstance(executor, TakesMasks) else None
        self._num_words = 2 * -(-vocab_size // 64)  # of a mask, in whole 8 bytes
        self._num_filled = -(-vocab_size // 32)
        self._compiling: list[tuple[Sequence, Compiling]] = []

    def check(self, request: Request) -> Compiling | None:
        """Begin to compile what a request needs.  Raises RequestError if it cannot be had."""
        sampling = request.sampling
        if sampling.structured is None and sampling.thinking is None:
            return None
        if self._executor is None:
            raise RequestError(
                "outputs cannot be constrained here: the platform's executor takes no masks",
                hint="leave out what constrains the output, or use another platform",
            )
        if sampling.structured is None:
            return None
        if self.compiler is None:
            raise RequestError("outputs cannot be constrained here: there is no tokenizer")
        if sampling.min_tokens:
            raise RequestError(
                "min_tokens cannot be had with a structured output, which ends where it is whole",
                hint="leave min_tokens out, or ask for a length in the schema",
            )
        return self.compiler.submit(sampling.structured.constraint)

    def admit(self, seq: Sequence, compiling: Compiling | None) -> bool:
        """Whether a sequence may run at once; if not it comes with `ready`."""
        thinking = seq.request.sampling.thinking
        if compiling is None:
            seq.guide = None if thinking is None else Guide(None, thinking)
            return True
        self._compiling.append((seq, compiling))
        return False

    def ready(self) -> tuple[list[Sequence], list[tuple[Sequence, Refusal]]]:
        """Sequences that may run now, and those whose constraint turned out wrong."""
        done = [(seq, compiling) for seq, compiling in self._compiling if compiling.done]
        if not done:
            return [], []
        self._compiling = [pair for pair in self._compiling if not pair[1].done]
        may_run: list[Sequence] = []
        wrong: list[tuple[Sequence, Refusal]] = []
        for seq, compiling in done:
            if seq.finished:
                continue
            try:
                matcher = compiling.result().matcher()
            except RequestError as error:
                wrong.append((seq, Refusal(error.message, error.hint)))
            else:
                seq.guide = Guide(matcher, seq.request.sampling.thinking)
                may_run.append(seq)
        return may_run, wrong

    @property
    def compiling(self) -> bool:
        return bool(self._compiling)

    def wait(self) -> None:
        """Until something is compiled, or a short while."""
        futures = [compiling.future for _, compiling in self._compiling]
        wait(futures, timeout=_WAIT_S, return_when=FIRST_COMPLETED)

    def mask(self, step: Scheduled) -> None:
        """Hand the masks of a step after, now that all tokens before it are known."""
        assert self._executor is not None
        slots: list[int] = []
        rows: list[Mask] = []
        slot_of = dict(zip(map(id, step.sequences), step.plan.slots, strict=True))
        for seq in step.sampled:
            if seq.guide is None or seq.finished:
                continue
            mask = np.zeros(self._num_words, np.int32)
            if seq.guide.restrict(mask[: self._num_filled]):
                slots.append(slot_of[id(seq)])
                rows.append(mask)
        bits = b"".join(row.tobytes() for row in rows)
        self._executor.mask(TokenMasks(step_id=step.plan.step_id, slots=slots, bits=bits))

    def close(self) -> None:
        if self.compiler is not None:
            self.compiler.close()
