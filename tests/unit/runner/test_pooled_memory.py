"""A model that makes vectors gives its memory back and takes it again, as one that generates."""

from __future__ import annotations

from pathlib import Path

import allmetal
from allmetal.executor.local import LocalExecutor


def test_after_memory_was_given_back_twice_and_taken_again_vectors_are_the_same(
    tiny_llama: Path,
) -> None:
    with allmetal.LLM(
        str(tiny_llama), platform="cpu", task="embed", threads=1, kv_cache_memory=1 << 22
    ) as llm:
        (before,) = llm.embed("One engine, all metal.")
        executor = llm.engine.executor
        assert isinstance(executor, LocalExecutor)
        assert executor.release(weights=False) >= 0
        assert executor.release(weights=False) >= 0  # there is nothing more
        executor.restore(llm.engine.layout)
        llm.engine.cache.pool.forget_all()
        (again,) = llm.embed("One engine, all metal.")
    assert again == before
