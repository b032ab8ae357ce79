"""Level 2: whole models under the engine choose the reference's tokens, however their requests
share it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from allmetal.executor.contract import BringsExecutor
from allmetal.platform.capabilities import available, capability, describe
from allmetal.platform.contract import DeviceInfo, Native, Platform, Unknown
from allmetal.testing.conformance.base import Conformance, covers
from allmetal.testing.conformance.contract import MODEL
from allmetal.testing.conformance.engines import (
    MakeExecutor,
    Served,
    executor_of,
    expected,
    random_prompt,
    serve,
)
from allmetal.testing.conformance.recorded import Counting
from allmetal.testing.conformance.tiny_models import KINDS, Kind

NUM_TOKENS = 24
TIE: Mapping[str, float] = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
"""dtype -> difference of log probabilities that rounding may turn round."""
SOME = [k for k in KINDS if k.name in ("dense", "window-and-full", "norm-of-each-head")]
EVERY = pytest.mark.parametrize("kind", KINDS, ids=str)


class ModelConformance(Conformance):
    """Override `make_executor` for an executor that needs more than a config and a plan."""

    level = 2

    @pytest.fixture
    def make_executor(self) -> MakeExecutor:
        return executor_of

    @pytest.fixture
    def trial(
        self, platform: Platform, device_info: DeviceInfo, make_executor: MakeExecutor
    ) -> Trial:
        return Trial(platform, device_info, make_executor)

    @EVERY
    def test_a_model_chooses_the_references_tokens(self, trial: Trial, kind: Kind) -> None:
        b = trial.block_size
        trial.hold(kind, [_prompts(2 * b + 9, 5, b, b + 1)])

    @pytest.mark.parametrize("kind", SOME, ids=str)
    def test_so_it_does_in_the_platforms_favourite_dtype(self, trial: Trial, kind: Kind) -> None:
        if trial.favourite in (None, trial.dtype):
            pytest.skip(f"needs advice of another dtype than {trial.dtype}")
        trial.hold(kind, [_prompts(trial.block_size + 9, 5)], dtype=trial.favourite)

    @EVERY
    def test_chunked_prefill_changes_no_token(self, trial: Trial, kind: Kind) -> None:
        b = trial.block_size
        prompts = _prompts(2 * b + 9, 5, b, b + 1)
        trial.hold(kind, [prompts], max_num_batched_tokens=11)

    @covers("prefix_caching")
    @EVERY
    def test_prefix_hits_change_no_token(self, trial: Trial, kind: Kind) -> None:
        trial.needs("prefix_caching")
        prefix = random_prompt(2 * trial.block_size, 50)
        first = [prefix + random_prompt(7, 51)]
        again = [*first, prefix + random_prompt(5, 52), prefix + first[0][len(prefix) :][:1]]
        served = trial.hold(kind, [first, again], prefix_caching=True)
        assert served.stats.prefix_hits >= len(again) * len(prefix), "nothing was reused"

    @EVERY
    def test_preemption_changes_no_token(self, trial: Trial, kind: Kind) -> None:
        """Four sequences that each begin a new block soon, in a cache that has room for one."""
        b = trial.block_size
        prompts = _prompts(*(max(1, b - 3 - i) for i in range(4)))
        blocks = 2 + -(-(b + NUM_TOKENS) // b)
        served = trial.hold(kind, [prompts], blocks=blocks, prefix_caching=False)
        assert served.stats.num_preemptions > 0, "nobody had to give way"

    @covers("graph_capture")
    @EVERY
    def test_recorded_steps_change_no_token(self, trial: Trial, kind: Kind) -> None:
        trial.needs("graph_capture")
        trial.needs_own_attention(kind)
        counting = Counting(trial.platform)
        b = trial.block_size
        rounds = [_prompts(b - 2, 5, b + 1), _prompts(b - 2, 2 * b)]
        trial.hold(
            kind,
            rounds,
            platform=counting.as_platform,
            dtype=trial.native_dtype,
            graph_capture=True,
        )
        if not isinstance(trial.platform, BringsExecutor):
            assert counting.num_replays > 0, "nothing was replayed"

    @covers("async_scheduling")
    @pytest.mark.parametrize("ahead", [True, False], ids=["ahead", "in turn"])
    def test_scheduling_ahead_changes_no_token(self, trial: Trial, ahead: bool) -> None:
        if ahead:
            trial.needs("async_scheduling")
        trial.hold(KINDS[0], [_prompts(40, 5, 17)], async_scheduling=ahead)


class Trial:
    """A platform under test, with what it says of itself."""

    def __init__(self, platform: Platform, info: DeviceInfo, make_executor: MakeExecutor) -> None:
        self.platform, self._info, self._make_executor = platform, info, make_executor
        self._table = platform.capabilities(info)
        device = platform.open(info)
        advice = device.advice(MODEL)
        device.close()
        self.block_size, self.favourite = advice.block_size, advice.dtype
        self.dtype = next(d for d in TIE if available(capability(self._table, f"dtype.{d}")))
        native = (d for d in TIE if isinstance(self._table.get(f"dtype.{d}"), Native))
        self.native_dtype = next(native, self.dtype)
        """That of kernels of its own: the reference reads lengths on the host, and cannot be
        recorded."""

    def needs(self, feature: str) -> None:
        answer = capability(self._table, feature)
        if not available(answer):
            pytest.skip(f"needs {feature}: {describe(answer)}")

    def needs_own_attention(self, kind: Kind) -> None:
        """The reference's reads lengths on the host, so steps with it cannot be recorded."""
        for feature in kind.features:
            own = available(self._table.get(feature, Unknown()))
            if feature.startswith("attention.") and not own:
                pytest.skip(f"needs {feature} by a kernel of the platform's own")

    def hold(
        self,
        kind: Kind,
        rounds: Sequence[Sequence[tuple[int, ...]]],
        *,
        platform: Platform | None = None,
        dtype: str | None = None,
        **options: Any,
    ) -> Served:
        """Serve the rounds and compare every token.  Nothing is recorded unless asked for."""
        dtype = dtype or self.dtype
        served = serve(
            kind,
            platform or self.platform,
            self._info,
            rounds,
            num_tokens=NUM_TOKENS,
            make_executor=self._make_executor,
            dtype=dtype,
            **{"block_size": self.block_size, "graph_capture": False, **options},
        )
        prompts = [prompt for prompts in rounds for prompt in prompts]
        for number, (prompt, got) in enumerate(zip(prompts, served.tokens, strict=True)):
            right = expected(kind, dtype, prompt, NUM_TOKENS)
            differs = right.leaves(got, TIE[dtype])
            assert not differs, f"{kind}, prompt {number} of {len(prompt)} tokens: {differs}"
        return served


def _prompts(*lengths: int) -> list[tuple[int, ...]]:
    return [random_prompt(length, seed) for seed, length in enumerate(lengths)]
