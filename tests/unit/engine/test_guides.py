"""Constrained sequences beside free ones: steps run ahead, and masks come in time."""

from __future__ import annotations

import dataclasses
import json
import re
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger import VOCAB, LedgerExecutor, next_token

from allmetal.cache.groups import layout_for
from allmetal.constraint import Constraint, StructuredOutput, Thinking
from allmetal.engine.engine import Engine
from allmetal.engine.limits import Limits
from allmetal.errors import RequestError
from allmetal.executor.contract import StepPlan, TokenMasks
from allmetal.plugins.manager import plugins
from allmetal.request import Request, SamplingParams, TokenDelta
from allmetal.structured.compiler import Compiling, GrammarCompiler
from allmetal.structured.contract import Matcher, Vocabulary

pytest.importorskip("llguidance", reason="needs allmetal[structured]")

EOS, THINK, DONE = 96, 95, 94
TOKENS: list[bytes | None] = [bytes([32 + i]) for i in range(94)] + [None, None, None]
VOCABULARY = Vocabulary(tokens=TOKENS, stop_token_ids=(EOS,), size=VOCAB)
FORMS = [
    StructuredOutput(regex="[a-f]{3,9}", provider="llguidance"),
    StructuredOutput(choice=["yes", "no", "maybe so"], provider="llguidance"),
    StructuredOutput(
        json={"type": "integer", "minimum": 0, "maximum": 99999}, any_whitespace=False
    ),
]


def allowed(mask: np.ndarray) -> list[int]:
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[:VOCAB]
    return [int(i) for i in np.flatnonzero(bits)]


@dataclass
class MaskedLedger(LedgerExecutor):
    """Chooses among what a mask leaves, by the token that would have come."""

    masks: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    masked_steps: list[int] = field(default_factory=list)

    def mask(self, masks: TokenMasks) -> None:
        assert masks.step_id not in self.masked_steps
        self.masked_steps.append(masks.step_id)
        width = 2 * -(-VOCAB // 64)
        rows = np.frombuffer(masks.bits, np.int32).reshape(-1, width)
        for slot, row in zip(masks.slots, rows, strict=True):
            self.masks[masks.step_id, slot] = allowed(row.copy())

    def choose(self, step: StepPlan, slot: int, token: int) -> int:
        assert not step.masked or step.step_id in self.masked_steps, "its masks did not come"
        left = self.masks.get((step.step_id, slot))
        return token if left is None else left[token % len(left)]


def of_its_own(prompt: list[int], matcher: Matcher, most: int) -> list[int]:
    """What a constrained sequence must get, worked out without an engine."""
    tokens = list(prompt)
    for _ in range(most):
        mask = np.zeros(-(-VOCAB // 32), np.int32)
        matcher.fill(mask)
        left = allowed(mask)
        token = left[next_token([tuple(tokens)] * 2) % len(left)]
        tokens.append(token)
        assert matcher.accept(token)
        if matcher.ended:
            break
    return tokens[len(prompt) :]


def compiler_of(**providers: str) -> GrammarCompiler:
    return GrammarCompiler(lambda: VOCABULARY, providers or plugins().structured_providers())


COMPILER = compiler_of()


def make(num_blocks: int = 64, compiler: GrammarCompiler = COMPILER, **limits: Any) -> Engine:
    executor = MaskedLedger([None, None], num_blocks)
    settings = Limits(
        **{
            "max_model_len": 64,
            "max_num_seqs": 4,
            "max_num_batched_tokens": 8,
            "block_size": 4,
            **limits,
        }
    )
    loaded = executor.load()
    one = layout_for(loaded.kv_specs, settings.block_size, 1 << 20)
    sized = dataclasses.replace(loaded, kv_bytes=num_blocks * one.block_bytes)
    executor.load = lambda: sized  # type: ignore[method-assign]
    engine = Engine(executor, settings)
    engine.guides.compiler = compiler
    return engine


def request(name: str, prompt: list[int], **sampling: Any) -> Request:
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 20, **sampling})
    return Request(request_id=name, prompt_token_ids=prompt, sampling=params, eos_token_ids=(EOS,))


def drain(engine: Engine) -> dict[str, list[TokenDelta]]:
    deltas: dict[str, list[TokenDelta]] = {}
    for _ in range(10_000):
        if not engine.has_work:
            break
        for delta in engine.step():
            deltas.setdefault(delta.request_id, []).append(delta)
    assert not engine.has_work
    assert engine.cache.pool.num_free == engine.cache.pool.num_blocks - 1
    assert not engine.scheduler.running
    return deltas


def tokens_of(deltas: list[TokenDelta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


def text_of(deltas: list[TokenDelta]) -> str:
    return b"".join(TOKENS[token] or b"" for token in tokens_of(deltas)).decode()


# ---- grammars ------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    asks=st.lists(
        st.tuples(st.lists(st.integers(0, 90), min_size=1, max_size=12), st.integers(-1, 2)),
        min_size=1,
        max_size=6,
    ),
    num_blocks=st.sampled_from([64, 15]),
    ahead=st.booleans(),
    prefix_caching=st.booleans(),
)
def test_what_comes_is_the_same_whatever_runs_beside_it(
    asks: list[tuple[list[int], int]], num_blocks: int, ahead: bool, prefix_caching: bool
) -> None:
    engine = make(num_blocks, async_scheduling=ahead, prefix_caching=prefix_caching)
    for index, (prompt, form) in enumerate(asks):
        structured = FORMS[form] if form >= 0 else None
        engine.add(request(str(index), prompt, structured=structured))
    deltas = drain(engine)

    for index, (prompt, form) in enumerate(asks):
        got = tokens_of(deltas[str(index)])
        if form < 0:
            continue
        matcher = COMPILER.submit(FORMS[form].constraint).result().matcher()
        assert of_its_own(prompt, matcher, 20) == got
        assert "stop" == deltas[str(index)][-1].finish_reason


def test_each_form_is_held() -> None:
    engine = make()
    for index, form in enumerate(FORMS):
        engine.add(request(str(index), [index + 1], structured=form))
    deltas = drain(engine)

    assert re.fullmatch("[a-f]{3,9}", text_of(deltas["0"]))
    assert text_of(deltas["1"]) in ("yes", "no", "maybe so")
    assert 0 <= json.loads(text_of(deltas["2"])) <= 99999


def test_nobody_waits_for_a_mask() -> None:
    engine = make(max_num_batched_tokens=16)
    long = StructuredOutput(regex="[a-f]{20}", provider="llguidance")
    COMPILER.submit(long.constraint).result()
    engine.add(request("guided", [1], structured=long, max_tokens=20))
    engine.add(request("free", [2], max_tokens=20, ignore_eos=True))
    deltas = drain(engine)

    assert (20, 20) == (len(tokens_of(deltas["guided"])), len(tokens_of(deltas["free"])))
    executor: Any = engine.executor
    together = [step for step in executor.steps if len(step.slots) == 2]
    assert len(together) >= 19, "each has a token in every step"


def test_a_preempted_sequence_goes_on_where_its_grammar_was() -> None:
    engine = make(14, max_model_len=48)
    form = StructuredOutput(regex="[a-f]{30}", provider="llguidance")
    for index in range(4):
        engine.add(request(str(index), [index] * 3, structured=form, max_tokens=40))
    deltas = drain(engine)

    assert engine.scheduler.num_preemptions > 0
    for index in range(4):
        assert re.fullmatch("[a-f]{30}", text_of(deltas[str(index)]))


# ---- thoughts ------------------------------------------------------------------------------


def test_thoughts_are_cut_at_their_budget_and_the_form_holds_after() -> None:
    engine = make()
    thinking = Thinking(end=(DONE,), forced=(40, DONE), open=True, budget=5)
    engine.add(request("a", [3], structured=FORMS[1], thinking=thinking, max_tokens=40))
    got = tokens_of(drain(engine)["a"])

    cut = got.index(DONE)
    assert cut <= 6
    if cut == 6:
        assert 40 == got[5]
    assert b"".join(TOKENS[t] or b"" for t in got[cut + 1 :]).decode() in ("yes", "no", "maybe so")


@pytest.mark.parametrize("budget", [0, 3])
def test_a_budget_alone_leaves_the_rest_free(budget: int) -> None:
    engine = make()
    thinking = Thinking(end=(DONE,), open=True, budget=budget)
    engine.add(request("a", [3], thinking=thinking, max_tokens=12, ignore_eos=True))
    got = tokens_of(drain(engine)["a"])

    assert DONE in got[: budget + 1]
    assert 12 == len(got)
    executor: Any = engine.executor
    assert len(executor.masked_steps) < len(executor.steps), "held only while it must be"


def test_an_answer_may_begin_with_thoughts_or_without() -> None:
    seen = set()
    for first in range(40):
        engine = make()
        thinking = Thinking(start=(THINK,), end=(DONE,), budget=4)
        engine.add(request("a", [first], structured=FORMS[0], thinking=thinking, max_tokens=40))
        got = tokens_of(drain(engine)["a"])
        thought = got[0] == THINK
        answer = got[got.index(DONE) + 1 :] if thought else got
        assert re.fullmatch("[a-f]{3,9}", b"".join(TOKENS[t] or b"" for t in answer).decode())
        seen.add(thought)
    assert {True, False} == seen


# ---- what goes wrong -----------------------------------------------------------------------


class Slow:
    """A provider that waits to be let go."""

    go = threading.Event()

    def __init__(self, vocabulary: Vocabulary) -> None:
        del vocabulary

    def compile(self, constraint: Constraint) -> Any:
        assert self.go.wait(20)
        return COMPILER.submit(dataclasses.replace(constraint, provider="llguidance")).result()


def slow_compiler(limit_s: float = 10.0) -> GrammarCompiler:
    Slow.go.clear()
    compiler = GrammarCompiler(lambda: VOCABULARY, {"slow": "x:y"}, limit_s=limit_s)
    compiler._made["slow"] = Slow(VOCABULARY)
    return compiler


def test_others_run_while_a_form_is_compiled() -> None:
    engine = make(compiler=slow_compiler())
    form = StructuredOutput(regex="[a-c]{4}")
    engine.add(request("waits", [1], structured=form))
    engine.add(request("runs", [2], max_tokens=6, ignore_eos=True))
    got: list[TokenDelta] = []
    while sum(len(d.token_ids) for d in got) < 6:
        got += engine.step()
    assert {"runs"} == {delta.request_id for delta in got}
    begin = time.perf_counter()
    assert [] == engine.step()
    assert time.perf_counter() - begin > 0.002, "it does not spin"
    Slow.go.set()

    assert re.fullmatch("[a-c]{4}", text_of(drain(engine)["waits"]))


def test_a_request_can_be_ended_while_its_form_is_compiled() -> None:
    engine = make(compiler=slow_compiler())
    engine.add(request("a", [1], structured=StructuredOutput(regex="a")))
    engine.step()

    assert ["abort"] == [delta.finish_reason for delta in engine.abort(["a"])]
    Slow.go.set()
    assert {} == drain(engine)


def test_a_form_that_takes_too_long_is_refused_and_the_engine_serves_on() -> None:
    engine = make(compiler=slow_compiler(limit_s=0.05))
    engine.add(request("a", [1], structured=StructuredOutput(regex="a")))
    [refused] = drain(engine)["a"]
    Slow.go.set()

    assert refused.refusal is not None
    assert "within 0.05 s" in refused.refusal.message
    engine.add(request("b", [2], max_tokens=3, ignore_eos=True))
    assert 3 == len(tokens_of(drain(engine)["b"]))


def test_a_form_that_is_wrong_is_refused_with_a_hint() -> None:
    engine = make()
    engine.add(request("a", [1], structured=StructuredOutput(regex="(")))
    [refused] = drain(engine)["a"]

    assert refused.refusal is not None
    assert "regex is not valid" in refused.refusal.message
    assert refused.refusal.hint
    assert "error" == refused.finish_reason


def test_a_step_that_fails_ends_the_constrained_too_and_hangs_nobody() -> None:
    engine = make()
    executor: Any = engine.executor
    executor.fail_at = {3}
    engine.add(request("a", [1], structured=FORMS[0]))
    engine.add(request("b", [2], ignore_eos=True))
    deltas = drain(engine)

    assert all("fell over" in (deltas[name][-1].error or "") for name in "ab")
    engine.add(request("c", [3], structured=FORMS[1]))
    assert "stop" == drain(engine)["c"][-1].finish_reason


def test_steps_under_way_are_settled_with_their_masks() -> None:
    engine = make()
    engine.add(request("a", [1], structured=FORMS[0]))
    taken = [*engine.step(), *engine.step(), *engine.step(), *engine.settle()]
    taken += drain(engine)["a"]

    assert re.fullmatch("[a-f]{3,9}", text_of(taken))


@pytest.mark.parametrize(
    ("params", "complaint"),
    [
        ({"structured": FORMS[0], "min_tokens": 2}, "min_tokens cannot be had"),
        ({"structured": "json"}, "structured must be a StructuredOutput"),
        ({"thinking": 3}, "thinking must be a Thinking"),
    ],
)
def test_what_cannot_be_is_refused_at_once(params: dict[str, Any], complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        make().add(request("a", [1], **params))


def test_an_executor_that_takes_no_masks_is_said_so() -> None:
    engine = make()
    engine.guides._executor = None
    for params in ({"structured": FORMS[0]}, {"thinking": Thinking(end=(DONE,), budget=1)}):
        with pytest.raises(RequestError, match="takes no masks") as caught:
            engine.add(request("a", [1], **params))
        assert caught.value.hint
    del caught


def test_waiting_is_over_when_it_is_compiled() -> None:
    compiling: Compiling = COMPILER.submit(FORMS[0].constraint)
    compiling.result()

    assert compiling.done
