"""Each lie is caught, and the tests that fail say which lie it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import lies
import pytest
from lies import Liar

from allmetal.platform.contract import Native, Platform
from allmetal.testing.kit import KitRun, Part, run_kit

# Problems drawn at random would make a lie's failing tests another set each time.
FIXED = "not any_shape"


@dataclass(frozen=True)
class Lie:
    """`named_by`: the tests that fail, all of those that `select` leaves."""

    platform: Callable[[], Platform]
    select: str
    named_by: set[str]
    levels: tuple[int, ...] = (0, 1)
    says: str = ""


CLAIM = "test_{}_is_what_it_claims".format
KEEPS = "test_{}_keeps_nothing_from_one_call_to_the_next".format
LIES: dict[str, Lie] = {
    "wrong numbers in the last row of seven": Lie(
        lambda: Liar("linear", wrap=lies.linear(lies.last_row_of_seven)),
        "linear",
        {CLAIM("linear"), "test_linear_takes_rows_that_lie_apart"},
        says="row 6 is off",
    ),
    "wrong numbers at one head dim": Lie(
        lambda: Liar(
            "attention",
            misread=lambda s: replace(s, scale=s.scale * 1.1) if s.head_dim == 80 else s,
        ),
        "attention and not attention_input",
        {CLAIM("attention"), "test_attention_reads_what_its_own_writer_wrote"},
    ),
    "wrong numbers behind a full block": Lie(
        lambda: Liar("attention", wrap=lies.attention(lies.behind_a_full_block)),
        "attention_is",
        {CLAIM("attention")},
    ),
    "unwritten rows of attention": Lie(
        lambda: Liar(
            "attention",
            wrap=lies.attention(
                lambda op, *a: lies.leave_last_row(op(*a)) if len(a[0]) else op(*a)
            ),
        ),
        "attention_is",
        {CLAIM("attention")},
        says="not finite in 1 rows",
    ),
    "unwritten rows of a norm": Lie(
        lambda: Liar(
            "rms_norm",
            wrap=lambda s, op: (
                lambda x, *r: (
                    (lies.leave_last_row(op(x, *r)[0]), op(x, *r)[1]) if len(x) else op(x, *r)
                )
            ),
        ),
        "rms_norm_is",
        {CLAIM("rms_norm")},
        says="not finite in 1 rows",
    ),
    "unwritten rows of a product": Lie(
        lambda: Liar(
            "linear",
            wrap=lies.linear(lambda op, *a: lies.leave_last_row(op(*a)) if len(a[0]) else op(*a)),
        ),
        "linear_is",
        {CLAIM("linear")},
        says="not finite in 1 rows",
    ),
    "a window that is one too wide": Lie(
        lambda: Liar(
            "attention",
            misread=lambda s: replace(s, window=s.window + 1) if s.window else s,
        ),
        "attention and not attention_input or window",
        {
            CLAIM("attention"),
            "test_attention_reads_what_its_own_writer_wrote",
            "test_blocks_before_the_window_may_be_given_away",
        },
    ),
    "a window that is one too narrow": Lie(
        lambda: Liar(
            "attention",
            misread=lambda s: replace(s, window=s.window - 1) if (s.window or 0) > 1 else s,
        ),
        "attention_is",
        {CLAIM("attention")},
    ),
    "a slot of another token is written": Lie(
        lambda: Liar("attention_input", wrap=lies.writes_a_neighbour),
        "attention_input_is",
        {CLAIM("attention_input")},
        says="a slot of nobody was written",
    ),
    "a claim that no kernel keeps": Lie(
        lies.claims_sinks_takes_none,
        FIXED,
        {"test_what_it_calls_native_one_of_its_kernels_takes"},
        levels=(0,),
        says="attention.sinks is called native, but",
    ),
    "a device service that is not there": Lie(
        lambda: Liar(table={"graph_capture": Native("graphs")}),
        FIXED,
        {"test_what_it_calls_native_its_device_has"},
        levels=(0,),
        says="graph_capture is called native, but the device has no graphs",
    ),
    "a feature nobody knows": Lie(
        lambda: Liar(table={"telepathy": Native("mind")}),
        FIXED,
        {"test_its_capabilities_are_known_features_with_a_word_on_each"},
        levels=(0,),
        says="unknown: ['telepathy']",
    ),
    "a refusal without a reason": Lie(
        lies.silent_refusal,
        FIXED,
        {"test_its_kernels_answer_every_spec_and_refuse_with_a_reason"},
        levels=(0,),
        says="without a reason",
    ),
    "an answer that changes": Lie(
        lies.fickle,
        FIXED,
        {"test_its_kernels_answer_every_spec_and_refuse_with_a_reason"},
        levels=(0,),
        says="changes its mind",
    ),
    "a norm that remembers": Lie(
        lambda: Liar("rms_norm", wrap=lies.grows_louder), "rms_norm_keeps", {KEEPS("rms_norm")}
    ),
    "an activation that remembers": Lie(
        lambda: Liar("gated_activation", wrap=lies.grows_louder),
        "gated_activation_keeps",
        {KEEPS("gated_activation")},
    ),
    "a product that leaves something behind": Lie(
        lambda: Liar("linear", wrap=lies.first_bias_stays), "linear_keeps", {KEEPS("linear")}
    ),
    "a step remembered for every layer": Lie(
        lambda: Liar("attention", wrap=lies.OneStepForAll),
        "attention_is or share_a_batch",
        {"test_layers_of_other_kinds_share_a_batch"},
    ),
    "chunks of one length that are lost": Lie(
        lambda: Liar("attention_input", wrap=lies.no_write_of_eleven),
        "dense and (reference or chunked or prefix or preemption)",
        {"test_chunked_prefill_changes_no_token"},
        levels=(2,),
        says="the reference chooses",
    ),
    "recorded steps that run once": Lie(
        lambda: lies.Recording(lies.StaleRecorder),
        "dense and not favourite",
        {"test_recorded_steps_change_no_token"},
        levels=(2,),
        says="the reference chooses",
    ),
}


def run(lie: Lie) -> KitRun:
    return run_kit(lie.platform(), levels=lie.levels, select=f"({lie.select}) and {FIXED}")


@pytest.mark.parametrize("lie", LIES.values(), ids=list(LIES))
def test_a_lie_is_caught_and_named(lie: Lie) -> None:
    made = run(lie)

    assert lie.named_by == {result.test for result in made.failed()}
    assert not made.green
    assert any(lie.says in result.reason for result in made.failed())


def test_broken_hardware_fails_and_absent_hardware_skips() -> None:
    made = run_kit(lies.NoDriver(), levels=(0, 1), select="probe or rms_norm_keeps")

    assert not made.green
    assert {"test_rms_norm_keeps_nothing_from_one_call_to_the_next"} == {
        result.test for result in made.failed()
    }
    assert all("the driver is gone" in result.reason for result in made.failed())


def test_what_is_true_passes() -> None:
    """The same tests, on the same wrappings around nothing wrong."""
    honest: dict[str, Any] = {"wrap": lambda spec, op: op}
    for family in ("attention", "attention_input", "linear", "rms_norm", "gated_activation"):
        made = run_kit(Liar(family, **honest), levels=(1,), select=f"{family} and {FIXED}")
        assert made.green, made.failed()


def test_recorded_steps_pass_where_they_are_recorded_well() -> None:
    made = run_kit(lies.Recording(), levels=(2,), select="recorded")

    assert made.green, made.failed()
    assert all(result.outcome == "passed" for result in made.results), made.results


def test_parts_of_a_run_make_the_whole() -> None:
    def names(part: Part) -> list[tuple[str, str]]:
        made = run_kit(Liar("rms_norm"), levels=(1,), select="rms_norm_takes", part=part)
        return [(result.test, result.case) for result in made.results]

    whole = names(Part())
    assert len(whole) > 2
    assert [names(Part(number=number, of=2)) for number in (0, 1)] == [whole[::2], whole[1::2]]
