"""Every decision of the plan, and that no explicit wish is silently replaced."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from allmetal.config import EngineConfig
from allmetal.errors import ConfigError, FallbackError
from allmetal.platform.contract import Advice, DeviceInfo, Emulated, ModelFacts, Native, Unsupported
from allmetal.platform.plan import Decision, Plan, fall_back
from allmetal.platform.planner import LONGEST_UNASKED, plan
from allmetal.platform.policy import Policies
from allmetal.platform.render import render, to_json, warning

DEVICE = DeviceInfo(index=0, name="thing", total_memory=8 << 30, traits={"kind": "accelerator"})
MODEL = ModelFacts(
    model_type="llama",
    dtype="bfloat16",
    num_layers=2,
    hidden_size=64,
    head_dim=16,
    vocab_size=100,
    max_model_len=4096,
    parameter_bytes=1 << 30,
)
TABLE = {
    "dtype.bfloat16": Native("matrix units"),
    "dtype.float32": Native("vector units"),
    "dtype.float16": Unsupported("no half precision here"),
    "kv_dtype.float8_e4m3fn": Emulated("widened on every read"),
    "quant.int8": Native("int8 dot products"),
    "prefix_caching": Native("block tables"),
    "async_scheduling": Native("streams"),
    "graph_capture": Unsupported("launches cannot be recorded"),
}


def make(
    table: dict[str, Any] = TABLE,
    model: ModelFacts = MODEL,
    advice: Advice = Advice(),  # noqa: B008  (frozen)
    **config: Any,
) -> Plan:
    return plan(EngineConfig(model="m", **config), model, "metal", DEVICE, table, advice)


def row(made: Plan, feature: str) -> Decision:
    (found,) = [r for r in made.decisions if r.feature == feature]
    return found


def test_the_checkpoints_dtype_is_kept_where_the_platform_has_it() -> None:
    made = make()
    assert (made.dtype, made.kv_dtype) == ("bfloat16", "bfloat16")
    assert row(made, "dtype").by == "model"


def test_advice_decides_the_dtype_where_the_user_is_silent_and_says_why() -> None:
    advice = Advice(dtype="float32", dtype_reason="twice as fast")
    made = make(advice=advice)
    assert made.dtype == "float32"
    assert row(made, "dtype").reason == "twice as fast"
    assert make(advice=advice, dtype="bfloat16").dtype == "bfloat16"


def test_a_checkpoints_dtype_the_platform_lacks_is_replaced_with_a_reason() -> None:
    made = make(model=replace(MODEL, dtype="float16"))
    assert made.dtype == "bfloat16"
    (warned,) = made.warnings
    assert warned == row(made, "dtype")
    assert "lacks the checkpoint's float16" in warned.reason
    none = {f"dtype.{name}": Unsupported("no") for name in ("bfloat16", "float16", "float32")}
    with pytest.raises(ConfigError, match="none of the dtypes"):
        make(table=none)


def test_where_a_platform_is_silent_the_core_says_what_it_does_itself() -> None:
    made = make(table={}, quantization="int8", kv_cache_dtype="float8_e4m3fn")
    assert (made.dtype, made.quantization, made.kv_dtype) == ("bfloat16", "int8", "float8_e4m3fn")
    assert made.prefix_caching
    assert made.async_scheduling
    assert made.graph_sizes == ()
    assert "reference kernels" in row(made, "quantization").reason
    assert made.warnings == ()


WISHES: list[tuple[dict[str, str], str, str, str]] = [
    ({"dtype": "float16"}, "dtype", "bfloat16", "no half precision here"),
    ({"kv_cache_dtype": "int8"}, "kv_cache_dtype", "bfloat16", "the platform does not say"),
    ({"quantization": "int8"}, "quantization", "none", "not on Tuesdays"),
]


@pytest.mark.parametrize(("wish", "feature", "got", "why"), WISHES)
def test_a_wish_is_never_replaced_unless_it_is_let_go_by_name(
    wish: dict[str, str], feature: str, got: str, why: str
) -> None:
    table = {**TABLE, "quant.int8": Unsupported("not on Tuesdays")}
    (asked,) = wish.values()
    for general in ({}, "warn", "allow", {"*": "allow"}):
        with pytest.raises(FallbackError, match=f"{asked} cannot be had on metal: {why}") as error:
            make(table=table, fallback=general, **wish)
        assert error.value.hint is not None
        assert f"--fallback {feature}=warn" in error.value.hint
    warned, allowed = (
        make(table=table, fallback={feature: policy}, **wish) for policy in ("warn", "allow")
    )
    expected = Decision(
        feature=feature, asked=asked, got=got, by="platform", reason=why, fallback=True, warn=True
    )
    assert row(warned, feature) == expected
    assert warned.warnings == (expected,)
    assert row(allowed, feature) == replace(expected, warn=False)
    assert allowed.warnings == ()
    assert warning(expected) == f"{feature} {asked} cannot be had, {got} is used: {why}"


@pytest.mark.parametrize("feature", ["prefix_caching", "async_scheduling", "graph_capture"])
def test_a_switch_that_is_asked_for_is_had_or_refused(feature: str) -> None:
    table = {**TABLE, feature: Unsupported("not here")}
    assert row(make(table=table), feature).got == "off"
    assert row(make(table=table, **{feature: False}), feature).by == "user"
    with pytest.raises(FallbackError, match=f"{feature} cannot be had on metal: not here") as error:
        make(table=table, **{feature: True})
    assert error.value.hint == (
        f"--no-{feature.replace('_', '-')}; or --fallback {feature}=warn to go on without"
    )
    warned = make(table=table, fallback={feature: "warn"}, **{feature: True})
    assert [r.feature for r in warned.warnings] == [feature]


def test_graphs_that_are_asked_for_need_sizes_to_record() -> None:
    table = {**TABLE, "graph_capture": Native("graphs")}
    with pytest.raises(FallbackError, match="advises no sizes"):
        make(table=table, graph_capture=True)
    assert make(table=table, graph_capture=True, advice=Advice(graph_sizes=(1, 2))).graph_sizes


def test_policies_go_from_the_feature_to_its_kind_to_all_to_the_default() -> None:
    lacking = {**TABLE, "quant.gguf": Unsupported("no blocks")}
    gguf = replace(MODEL, quantization="gguf")
    assert [r.feature for r in make(lacking, gguf).warnings] == ["quantization"]
    assert make(lacking, gguf, fallback="allow").warnings == ()
    named: dict[str, Any]
    for named in ({"quant.gguf": "error"}, {"quant": "error"}, {"quantization": "error"}):
        with pytest.raises(FallbackError, match="no blocks"):
            make(lacking, gguf, fallback={"*": "allow", **named})
    assert make(lacking, gguf, fallback={"quant": "error", "quant.gguf": "allow"}).warnings == ()


def test_strict_makes_an_error_of_what_would_be_a_warning_and_of_nothing_else() -> None:
    lacking = {**TABLE, "quant.gguf": Unsupported("no blocks")}
    assert make(strict=True).graph_sizes == ()
    with pytest.raises(FallbackError, match="no blocks"):
        make(lacking, replace(MODEL, quantization="gguf"), strict=True)


def test_a_policy_for_what_does_not_exist_names_what_does() -> None:
    with pytest.raises(ConfigError, match="no feature is called 'graph_captur'") as error:
        make(fallback={"graph_captur": "warn"})
    assert error.value.hint is not None
    assert "graph_capture" in error.value.hint
    with pytest.raises(ConfigError, match="'never' is no fallback policy"):
        make(fallback={"graph_capture": "never"})
    with pytest.raises(ConfigError, match="'never' is no fallback policy"):
        make(fallback="never")


def test_several_devices_need_collectives_and_as_many_devices() -> None:
    with pytest.raises(FallbackError, match="tensor_parallel_size 2 cannot be had on metal") as e:
        make(tensor_parallel_size=2)
    assert "does not say" in e.value.message
    assert "--tensor-parallel-size 1" in (e.value.hint or "")
    alone = make(tensor_parallel_size=2, fallback={"collective": "warn"})
    assert alone.tensor_parallel_size == 1
    assert alone.warnings
    rings = {f"collective.{op}": Native("rings") for op in ("all_reduce", "all_gather")}
    with pytest.raises(ConfigError, match="metal has 1 from the one taken on"):
        make(table={**TABLE, **rings}, tensor_parallel_size=2)


def test_wishes_that_can_be_had_are_granted_and_say_how() -> None:
    made = make(kv_cache_dtype="float8_e4m3fn", quantization="int8", strict=True)
    assert made.kv_dtype == "float8_e4m3fn"
    assert row(made, "kv_cache_dtype").reason == "emulated: widened on every read"
    assert made.quantization == "int8"
    assert row(made, "quantization").by == "user"
    assert make(kv_cache_dtype="bfloat16", strict=True).kv_dtype == "bfloat16"
    with pytest.raises(ConfigError, match="int3 is unknown"):
        make(kv_cache_dtype="int3")


def test_a_quantised_checkpoint_stays_what_it_is() -> None:
    gguf = replace(MODEL, quantization="gguf")
    made = make(model=gguf)
    assert made.quantization == "gguf"
    assert "reference kernels, which expand" in row(made, "quantization").reason
    assert not made.warnings
    with pytest.raises(FallbackError, match="the checkpoint is gguf already"):
        make(model=gguf, quantization="int8")


def test_the_models_length_bounds_what_may_be_asked() -> None:
    assert make().max_model_len == 4096
    assert make(max_model_len=100).max_model_len == 100
    with pytest.raises(ConfigError, match="5000 is more than the model's 4096") as error:
        make(max_model_len=5000)
    assert error.value.hint == "--max-model-len 4096 or less"


def test_a_step_has_room_for_one_token_of_every_sequence() -> None:
    advice = Advice(max_num_seqs=64, max_num_batched_tokens=512)
    sizes = {
        (None, None): (64, 512),
        (8, None): (8, 512),
        (None, 16): (16, 16),
        (1000, None): (1000, 1000),
        (4, 4): (4, 4),
    }
    for (seqs, tokens), expected in sizes.items():
        made = make(advice=advice, max_num_seqs=seqs, max_num_batched_tokens=tokens)
        assert (made.max_num_seqs, made.max_num_batched_tokens) == expected
    assert "one token a sequence" in row(make(max_num_batched_tokens=16), "max_num_seqs").reason
    with pytest.raises(ConfigError, match="no room"):
        make(max_num_seqs=8, max_num_batched_tokens=4)


def test_switches_follow_the_platform_unless_they_are_off() -> None:
    assert make().prefix_caching
    assert make().async_scheduling
    made = make(prefix_caching=False, table={**TABLE, "async_scheduling": Unsupported("one queue")})
    assert not made.prefix_caching
    assert row(made, "prefix_caching").by == "user"
    assert not made.async_scheduling
    assert row(made, "async_scheduling").reason == "one queue"
    assert not made.warnings


def test_graphs_need_the_platform_and_end_at_the_largest_batch() -> None:
    advice = Advice(graph_sizes=(4, 2, 1, 512, 1024), max_num_seqs=100)
    assert make(advice=advice).graph_sizes == ()
    table = {**TABLE, "graph_capture": Native("graphs")}
    made = make(advice=advice, table=table)
    assert made.graph_sizes == (1, 2, 4, 100)
    assert row(made, "graph_capture").got == "4 sizes up to 100"
    advice = replace(advice, graph_tokens=(64, 16, 4096), max_num_batched_tokens=1000)
    with_prompts = make(advice=advice, table=table)
    assert with_prompts.graph_tokens == (16, 64, 1000)
    assert row(with_prompts, "graph_capture").got == "4 sizes up to 100, prompts up to 1000 tokens"
    few = make(advice=advice, table=table, max_num_seqs=3, max_model_len=30)
    assert few.graph_tokens == (16, 64, 90)  # no step can have more
    assert make(advice=replace(advice, graph_sizes=()), table=table).graph_tokens == ()
    unwanted = make(advice=advice, table=table, graph_capture=False)
    assert unwanted.graph_sizes == ()
    assert row(unwanted, "graph_capture").asked == "off"


def test_static_shapes_carry_the_ladders_on_to_the_largest_step() -> None:
    table = {**TABLE, "graph_capture": Native("one program a step")}
    advice = Advice(
        graph_sizes=(1, 4), graph_tokens=(16, 64), static_shapes=True, max_num_batched_tokens=300
    )

    made = make(advice=advice, table=table, max_num_seqs=10)

    assert made.static_shapes
    assert made.graph_sizes == (1, 4, 10)
    assert made.graph_tokens == (16, 64, 300)


def test_without_recorded_steps_nothing_is_padded_and_the_plan_says_why() -> None:
    advice = Advice(graph_sizes=(1, 4), graph_tokens=(16, 64), static_shapes=True)
    table = {**TABLE, "graph_capture": Native("one program a step")}

    made = make(advice=advice, table=table, graph_capture=False)

    assert not made.static_shapes
    why = row(made, "static_shapes")
    assert (why.got, why.by) == ("off", "platform")
    assert "no step is recorded" in why.reason


def test_what_turns_out_while_loading_follows_the_policy_and_is_added() -> None:
    def late(policy: Any) -> Decision:
        return fall_back(
            Policies(named={"*": policy}),
            "metal",
            "graph_capture",
            asked="3 sizes",
            got="off",
            reason="no",
            hint="do without",
        )

    made = make()
    assert made.amended([late("warn")]).warnings == (late("warn"),)
    assert made.amended([late("allow")]).decisions == (*made.decisions, late("allow"))
    assert made.amended([late("allow")]).warnings == ()
    assert made.amended([]) is made
    assert not made.is_wish("graph_capture")
    assert make(graph_capture=False).is_wish("graph_capture")
    with pytest.raises(FallbackError, match="3 sizes cannot be had on metal: no"):
        late("error")


def test_memory_is_what_was_asked_or_the_platforms_share() -> None:
    assert make(advice=Advice(kv_memory_fraction=0.5)).memory_fraction == 0.5
    assert make(memory_fraction=0.25).memory_fraction == 0.25
    assert make(kv_cache_memory=1 << 20).kv_cache_memory == 1 << 20
    assert make().kv_cache_memory is None
    assert make(block_size=8).block_size == 8
    assert make(advice=Advice(block_size=64)).block_size == 64


def test_a_kernel_choice_names_a_family() -> None:
    assert row(make(kernel={"attention": "mine"}), "kernel.attention").got == "mine"
    with pytest.raises(ConfigError, match="no op family"):
        make(kernel={"attenton": "mine"})


def test_planning_is_a_function_of_its_arguments() -> None:
    assert make(threads=2, kernel={"moe": "x"}) == make(threads=2, kernel={"moe": "x"})


def test_a_plan_is_rendered_for_people_and_programs() -> None:
    made = make(dtype="float16", max_num_seqs=4, fallback={"dtype": "warn"})
    text = render(made)
    assert text.startswith("llama (1.00 GiB) on metal: thing, 8.0 GiB\n")
    (line,) = [x for x in text.splitlines() if " dtype " in x]
    assert line.split()[:4] == ["!", "dtype", "float16", "bfloat16"]
    assert len(text.splitlines()) == len(made.decisions) + 3
    plain = json.loads(json.dumps(to_json(made)))
    assert plain["device"]["traits"] == {"kind": "accelerator"}
    assert {row["feature"]: row["asked"] for row in plain["decisions"]}["dtype"] == "float16"
    assert plain["max_num_seqs"] == 4


def test_a_model_of_whole_texts_has_room_for_the_longest_and_shares_nothing() -> None:
    facts = replace(MODEL, task="embed", whole_texts=True, max_model_len=8192)
    made = make(model=facts)
    assert made.max_num_batched_tokens >= 8192
    assert not made.prefix_caching
    assert made.graph_sizes == ()
    said = {row.feature: (row.got, row.by) for row in made.decisions}
    assert said["task"] == ("embed", "model")
    with pytest.raises(ConfigError, match="no room for a text of 8192 tokens"):
        make(model=facts, max_num_batched_tokens=512)
    with pytest.raises(ConfigError, match="computes every text as a whole"):
        make(model=facts, prefix_caching=True)


def test_a_config_without_a_sane_limit_gets_one_unless_it_is_asked_for() -> None:
    endless = replace(MODEL, max_model_len=10**12)
    made = make(model=endless)
    assert made.max_model_len == LONGEST_UNASKED
    (row,) = [row for row in made.decisions if row.feature == "max_model_len"]
    assert "1000000000000" in row.reason
    assert make(model=endless, max_model_len=1 << 21).max_model_len == 1 << 21
