"""Level 1: what an opened device does beside its kernels.  A part that it has not is skipped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from allmetal.errors import GraphError
from allmetal.platform.batch import AtReplay, AttentionBatch, DeviceOnly
from allmetal.platform.contract import GraphCapture, Streams
from allmetal.platform.reference.kernel import LAYOUTS
from allmetal.platform.specs import AttentionSpec
from allmetal.testing.batches import paged_batch
from allmetal.testing.conformance.base import Bench, Conformance, check, covers, title
from allmetal.testing.conformance.paged import Problem, exactly, laid_out, written
from allmetal.testing.conformance.problems import ATTENTION

DECODE_LENGTHS = ([1, 17, 60, 33], [64, 2, 15, 48])
"""Tokens of four sequences when a step is recorded, and when it is replayed."""
WIDTH, SPARE = 8, 40
BLOCK_SIZES = (16, 128)
RECORDED = [
    s
    for s in ATTENTION
    if s.block_size in BLOCK_SIZES
    and s.head_dim == 64
    and s.num_kv_heads == 2
    and s.window in (None, 24)
    and s.kv_dtype == s.dtype
]


class ServicesConformance(Conformance):
    level = 1

    def test_pinned_memory_holds_the_same_values(self, bench: Bench) -> None:
        for x in (bench.normal(3, 5), bench.integers(0, 9, 7), torch.empty(0)):
            pinned = bench.device.pin(x.clone())
            assert torch.equal(pinned, x)
            assert torch.equal(bench.get(pinned.to(bench.device.torch_device)), x)

    def test_an_event_comes_after_the_work_before_it(self, bench: Bench) -> None:
        streams = _streams(bench)
        x = bench.put(bench.normal(64, 64))
        stream, event = streams.stream(), streams.event()
        bench.device.synchronize()
        with stream.use():
            y = x
            for _ in range(50):
                y = (y @ x).clamp(-1, 1)
            event.record()
        event.synchronize()
        assert event.query()
        expected = x.cpu()
        for _ in range(50):
            expected = (expected @ x.cpu()).clamp(-1, 1)
        assert (y.cpu() - expected).abs().max() < 1e-2

    def test_a_stream_waits_for_an_event_of_another(self, bench: Bench) -> None:
        streams = _streams(bench)
        first, second, event = streams.stream(), streams.stream(), streams.event()
        x = bench.put(torch.zeros(1 << 20))
        bench.device.synchronize()
        with first.use():
            for _ in range(20):
                x += 1
            event.record()
        second.wait(event)
        with second.use():
            y = x * 2
        bench.device.synchronize()
        assert bool((bench.get(y) == 40).all())

    @covers("graph_capture")
    def test_a_recorded_run_is_replayed_over_new_values(self, bench: Bench) -> None:
        graphs = _graphs(bench)
        x = bench.put(bench.normal(8, 16))
        out = torch.empty_like(x)

        def run() -> None:
            out.copy_((x * 3).relu() + x)

        run()
        graph = graphs.capture(run)
        for _ in range(3):
            fresh = bench.normal(8, 16)
            x.copy_(bench.put(fresh))
            graph.replay()
            check(bench.get(out), (3 * fresh).relu() + fresh, "float32")

    @covers("graph_capture")
    def test_a_recording_that_fails_leaves_the_device_as_it_was(self, bench: Bench) -> None:
        graphs = _graphs(bench)
        x = bench.put(torch.ones(4))

        def fails() -> None:
            x.add_(1)
            raise ValueError("no further")

        with pytest.raises(ValueError, match="no further"):
            graphs.capture(fails)
        bench.device.synchronize()
        y = x * 2
        assert bench.get(y).shape == (4,)
        graph = graphs.capture(lambda: x.add_(1))
        before = bench.get(x).clone()
        graph.replay()
        assert torch.equal(bench.get(x), before + 1)

    @covers("graph_capture")
    @pytest.mark.parametrize("spec", RECORDED, ids=title)
    def test_recorded_attention_follows_the_lengths_on_the_device(
        self, bench: Bench, spec: AttentionSpec
    ) -> None:
        """Skipped for a kernel that says that it cannot be recorded."""
        graphs = _graphs(bench)
        refused = []
        kernels = bench.claiming(spec)
        for kernel in kernels:
            op = kernel.build(spec)
            first, second = (_decoding(bench, spec, lens) for lens in DECODE_LENGTHS)
            lay = laid_out if op.kv_layout in LAYOUTS else written
            cache, new_cache = (lay(bench, spec, op, problem) for problem in (first, second))
            batch = _recordable(bench, spec, first)
            q = bench.put(first.q)
            sinks = None if spec.sinks is False else bench.put(_sinks(first, second))
            out = torch.empty_like(q)
            run = _run(op, q, cache, batch, sinks, out)
            try:
                run()
                graph = graphs.capture(run)
            except GraphError as error:
                refused.append(f"{kernel.name}: {error.message}")
                continue
            fresh = _recordable(bench, spec, second)
            for name in ("query_start", "seq_lens", "block_table", "slot_mapping"):
                getattr(batch, name).copy_(getattr(fresh, name))
            q.copy_(bench.put(second.q))
            cache.view(torch.uint8).copy_(new_cache.view(torch.uint8))
            assert batch.at_replay is not None
            for tell in batch.at_replay.tells:
                tell(second.paged.attention.host_seq_lens)
            graph.replay()
            check(bench.get(out), exactly(spec, second), spec.dtype)
        if len(refused) == len(kernels):
            pytest.skip(f"needs a kernel that can be recorded ({'; '.join(refused)})")


def _streams(bench: Bench) -> Streams:
    if bench.device.streams is None:
        pytest.skip("needs streams: the device has none")
    return bench.device.streams


def _graphs(bench: Bench) -> GraphCapture:
    if bench.device.graphs is None:
        pytest.skip("needs graphs: the device records nothing")
    return bench.device.graphs


def _decoding(bench: Bench, spec: AttentionSpec, lens: list[int]) -> Problem:
    """One new token each, in a cache that is as large whatever the lengths."""
    blocks = sum(-(-n // spec.block_size) for n in lens)
    paged = paged_batch(
        [1] * len(lens),
        lens,
        spec.block_size,
        generator=bench.generator,
        spare_blocks=SPARE - blocks,
    )
    kv = (len(paged.history), spec.num_kv_heads, spec.head_dim)
    return Problem(
        paged=paged,
        q=2 * bench.normal(len(lens), spec.num_heads, spec.head_dim, dtype=spec.dtype),
        k=bench.normal(*kv, dtype=spec.dtype),
        v=bench.normal(*kv, dtype=spec.dtype),
        sinks=bench.normal(spec.num_heads, dtype=spec.dtype) if spec.sinks else None,
    )


def _sinks(first: Problem, second: Problem) -> torch.Tensor:
    """A layer's own: the second problem gets those of the first."""
    assert first.sinks is not None
    assert second.sinks is not None
    second.sinks.copy_(first.sinks)
    return first.sinks


def _recordable(bench: Bench, spec: AttentionSpec, problem: Problem) -> AttentionBatch:
    """The host knows bounds alone; tables are as wide as any can be."""
    batch = bench.put_batch(problem.paged.attention)
    table = batch.block_table
    wide = torch.zeros(table.shape[0], WIDTH, dtype=table.dtype, device=table.device)
    wide[:, : table.shape[1]] = table
    return replace(
        batch,
        block_table=wide,
        max_seq_len=WIDTH * spec.block_size,
        host_seq_lens=DeviceOnly(),
        at_replay=AtReplay(),
        memo={},
    )


def _run(
    op: Callable[..., torch.Tensor],
    q: torch.Tensor,
    cache: torch.Tensor,
    batch: AttentionBatch,
    sinks: torch.Tensor | None,
    out: torch.Tensor,
) -> Callable[[], object]:
    def run() -> None:
        batch.memo.clear()
        out.copy_(op(q, cache, batch, sinks))

    return run
