"""MLX's models give the reference's tokens, however the engine cuts, shares and takes back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from allmetal.config import EngineConfig
from allmetal.engine.engine import Engine
from allmetal.errors import CheckpointError
from allmetal_mlx.executor import MlxExecutor

from .conftest import (
    CONFIGS,
    REFERENCE,
    SMALL,
    complete,
    drive,
    random_prompts,
    write_checkpoint,
)


def test_every_family_gives_the_references_tokens(checkpoint: Path) -> None:
    prompts = random_prompts(1, 5, 40, 90)
    expected = complete(checkpoint, prompts, kernel=REFERENCE)

    assert expected == complete(checkpoint, prompts)
    assert expected == complete(checkpoint, prompts, max_num_batched_tokens=16, max_num_seqs=4)
    assert expected == complete(checkpoint, prompts, async_scheduling=False, block_size=8)
    assert expected == [complete(checkpoint, [prompt])[0] for prompt in prompts]


def test_quantised_while_loading_it_gives_the_references_tokens(checkpoint: Path) -> None:
    prompts = random_prompts(7, 33)
    int8 = {"quantization": "int8"}

    expected = complete(checkpoint, prompts, kernel=REFERENCE, **int8)

    assert expected == complete(checkpoint, prompts, **int8)


def test_prefixes_are_reused_and_sequences_taken_back_without_a_trace(checkpoint: Path) -> None:
    shared, *_ = random_prompts(64)
    prompts = [[*shared, 5], [*shared, 9, 11], [*shared, 5, 6, 7]]
    expected = complete(checkpoint, prompts, kernel=REFERENCE)
    tight = EngineConfig(
        model=str(checkpoint),
        platform="mlx",
        block_size=16,
        kv_cache_memory=16 * 16 * 4 * 512,
        max_model_len=96,
    )

    engine = Engine.from_config(tight)
    first = drive(engine, prompts)
    again = drive(engine, prompts)
    stats = engine.stats()
    engine.close()

    assert expected == first == again
    assert stats.prefix_hits > 0


def test_a_preempted_sequence_goes_on_with_the_same_tokens(checkpoint: Path) -> None:
    prompts = random_prompts(40, 41, 42, 43)
    expected = complete(checkpoint, prompts, kernel=REFERENCE, max_model_len=80)
    # Blocks before a window are given back, so windows need less.
    memory = 3 << 15 if "gemma3" in checkpoint.name else 1 << 17
    config = EngineConfig(
        model=str(checkpoint), platform="mlx", block_size=8, kv_cache_memory=memory
    )

    engine = Engine.from_config(config)
    taken = drive(engine, prompts)
    preemptions = engine.stats().num_preemptions
    engine.close()

    assert preemptions > 0
    assert expected == taken


def test_its_own_executor_runs_what_it_knows_and_leaves_the_rest_to_the_core(
    tmp_path: Path,
) -> None:
    mistral = {**CONFIGS["llama"], "model_type": "mistral", "sliding_window": 24}
    known = write_checkpoint(tmp_path / "llama", CONFIGS["llama"])
    other = write_checkpoint(tmp_path / "other", CONFIGS["llama"])
    (other / "config.json").write_text((known / "config.json").read_text())

    engine = Engine.from_config(EngineConfig(model=str(known), platform="mlx"))
    assert isinstance(engine.executor, MlxExecutor)
    engine.close()

    (other / "config.json").write_text(json.dumps(mistral))
    engine = Engine.from_config(EngineConfig(model=str(other), platform="mlx"))
    assert engine.plan is not None
    (row,) = [d for d in engine.plan.decisions if d.feature == "executor"]
    used = {use.family: use.kernel for use in engine.plan.kernels}
    engine.close()
    assert "the core's" == row.got
    assert "MLX models are written for gemma3" in row.reason
    assert ("mlx_attention", "mlx_linear") == (used["attention"], used["linear"])

    prompts = random_prompts(5, 60)
    expected = complete(other, prompts, kernel=REFERENCE)
    assert expected == complete(other, prompts)


def test_a_checkpoint_that_does_not_fit_says_what_is_missing(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "llama", CONFIGS["llama"])
    longer = {**CONFIGS["llama"], "num_hidden_layers": SMALL["num_hidden_layers"] + 1}
    (folder / "config.json").write_text(json.dumps(longer))

    with pytest.raises(CheckpointError, match=r"missing \['layers.4.input_layernorm'"):
        Engine.from_config(EngineConfig(model=str(folder), platform="mlx"))
