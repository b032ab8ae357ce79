"""One shape on one device: every test of `gpu_table.py`, in a process of its own.

A line of JSON for each test as it is done.  Tokens are random and greedy, no end of sequence, no
prefix cache.  Tests mean what other engines' do:

- b1: one request, 512 tokens in: (time of 257 out - time of 1) / 256, the best of three; `ttft` is
  the best time of 1 out of three; `sampled` is the step with temperature and top-p
- stepN: N requests of 1024 tokens: the median time between results while all of them decode
- prefill8k: 8192 tokens in, 1 out, the best of three; then 16 such at once
- thr256: 256 requests, 512 in and 256 out, the better of two; thr1000: 1000 of 1024 in and 128 out
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BEGAN = time.time()

import torch  # noqa: E402

from allmetal.config import EngineConfig  # noqa: E402
from allmetal.engine.engine import Engine  # noqa: E402
from allmetal.executor.local import LocalExecutor  # noqa: E402
from allmetal.request import Request, SamplingParams  # noqa: E402
from allmetal.runner import model_runner, rank  # noqa: E402
from allmetal.runner.graphs import DecodeGraphs, MixedGraphs  # noqa: E402

IMPORTED = time.time()

TESTS = ("b1", "step32", "step128", "step256", "prefill8k", "thr256", "thr1000")
PROMPT, OUTPUT, CONTEXT, STEPS = 512, 256, 1024, 192
THROUGHPUT = {"thr256": (256, 512, 256), "thr1000": (1000, 1024, 128)}


class Bench:
    """Requests for one engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._random = random.Random(1)
        self._made = 0

    def requests(self, count: int, length: int, output: int, **sampling: Any) -> list[Request]:
        vocab = self.engine.loaded.vocab_size
        kind: dict[str, Any] = {"temperature": 0.0, **sampling}
        made = []
        for _ in range(count):
            self._made += 1
            tokens = self._random.choices(range(10, vocab - 10), k=length)
            made.append(
                Request(
                    request_id=str(self._made),
                    prompt_token_ids=tokens,
                    sampling=SamplingParams(max_tokens=output, ignore_eos=True, **kind),
                )
            )
        return made

    def seconds(self, requests: Sequence[Request]) -> float:
        """From the first request given to the last token taken."""
        counts = dict.fromkeys((request.request_id for request in requests), 0)
        began = time.perf_counter()
        for request in requests:
            self.engine.add(request)
        while self.engine.has_work:
            for delta in self.engine.step():
                assert delta.error is None, delta.error
                counts[delta.request_id] += len(delta.token_ids)
        took = time.perf_counter() - began
        for request in requests:
            assert counts[request.request_id] == request.sampling.max_tokens
        return took

    def steps(self, requests: Sequence[Request]) -> dict[str, float]:
        """Milliseconds between two results in which all of them get a token and none ends."""
        for request in requests:
            self.engine.add(request)
        stamps, full = [], []
        seen: set[str] = set()
        while self.engine.has_work:
            deltas = self.engine.step()
            stamps.append(time.perf_counter())
            later = [delta for delta in deltas if delta.request_id in seen]
            seen.update(delta.request_id for delta in deltas)
            ended = any(delta.finish_reason for delta in deltas)
            full.append(len(later) == len(requests) and not ended)
        took = [
            1e3 * (stamps[i] - stamps[i - 1])
            for i in range(1, len(stamps))
            if full[i] and full[i - 1]
        ][2:]
        ordered = sorted(took)
        return {
            "n": len(took),
            "median_ms": statistics.median(took),
            "mean_ms": statistics.fmean(took),
            "p10_ms": ordered[len(took) // 10],
            "p90_ms": ordered[len(took) * 9 // 10],
        }

    def single(self) -> dict[str, Any]:
        def both() -> float:
            long = self.seconds(self.requests(1, PROMPT, OUTPUT + 1))
            return 1e3 * (long - self.seconds(self.requests(1, PROMPT, 1))) / OUTPUT

        return {
            "ms_per_token": [both() for _ in range(3)],
            "ttft_ms": [1e3 * self.seconds(self.requests(1, PROMPT, 1)) for _ in range(3)],
            "step": self.steps(self.requests(1, PROMPT, OUTPUT)),
            "sampled": self.steps(self.requests(1, PROMPT, OUTPUT, temperature=0.8, top_p=0.95)),
            "idle": idle_share(self, 1),
        }

    def batch(self, count: int) -> dict[str, Any]:
        found: dict[str, Any] = self.steps(self.requests(count, CONTEXT, STEPS))
        # More sequences take longer, and hide the host's work the better.
        return {**found, "idle": idle_share(self, count)} if count <= 32 else found

    def prefill(self) -> dict[str, Any]:
        self.seconds(self.requests(1, 8192, 1))
        one = [self.seconds(self.requests(1, 8192, 1)) for _ in range(3)]
        many = self.seconds(self.requests(16, 8192, 1))
        return {"one_s": one, "one_tok_s": 8192 / min(one), "many_tok_s": 16 * 8192 / many}

    def throughput(self, name: str) -> dict[str, Any]:
        count, length, output = THROUGHPUT[name]
        times = 2 if name == "thr256" else 1
        took = [self.seconds(self.requests(count, length, output)) for _ in range(times)]
        return {"s": took, "out_tok_s": count * output / min(took)}


def idle_share(bench: Bench, count: int) -> float | None:
    """The part of a steady step in which no recorded work ran, by the device's own clock: from
    the end of each recorded step to the beginning of the next.  Copies count as idle."""
    runner: Any = bench.engine.executor._runner  # type: ignore[attr-defined]
    decode = runner._graphs.decode
    if decode is None or not torch.cuda.is_available():
        return None
    marks: list[tuple[Any, Any]] = []

    class Marked:
        def __init__(self, graph: Any) -> None:
            self.graph = graph

        def replay(self) -> None:
            pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            pair[0].record()
            self.graph.replay()
            pair[1].record()
            marks.append((pair[0], pair[1]))

    launches = decode._steps.launches
    kept = dict(launches)
    for size, launch in kept.items():
        launches[size] = type(launch)(Marked(launch.graph), launch.made)
    try:
        bench.steps(bench.requests(count, CONTEXT, 64))
    finally:
        launches.update(kept)
    torch.cuda.synchronize()
    steady = marks[-50:-2]
    whole: float = steady[0][0].elapsed_time(steady[-1][1])
    busy: float = sum(begin.elapsed_time(end) for begin, end in steady)
    return 1 - busy / whole


def profile(bench: Bench, count: int, length: int, output: int) -> list[str]:
    """The kernels that take the longest, and microseconds of each in all."""
    requests = bench.requests(count, length, output)
    for request in requests:
        bench.engine.add(request)
    if output > 1:
        while len(bench.engine.step()) < count:
            pass
    with torch.profiler.profile(activities=torch.profiler.supported_activities()) as profiler:
        for _ in range(20):
            bench.engine.step()
        torch.cuda.synchronize()
    rows = sorted(profiler.key_averages(), key=lambda row: -row.self_device_time_total)
    bench.engine.abort([request.request_id for request in requests])
    while bench.engine.has_work:
        bench.engine.step()
    return [
        f"{row.self_device_time_total:12.1f} us  {row.count:6}  {row.key[:90]}"
        for row in rows[:22]
        if row.self_device_time_total > 0
    ]


def timed_stages() -> dict[str, float]:
    """Seconds that parts of the start take, as they are done; some contain others."""
    took: dict[str, float] = {}
    stages: list[tuple[Any, str]] = [
        (LocalExecutor, "load"),
        (LocalExecutor, "allocate"),
        (rank, "build_model"),
        (model_runner, "rehearse"),
        (DecodeGraphs, "record"),
        (MixedGraphs, "record"),
    ]
    for owner, name in stages:
        timed(owner, name, f"{owner.__name__.rpartition('.')[2]}.{name}", took)
    return took


def timed_kernels() -> list[tuple[str, float]]:
    """Name and seconds of each kernel that is compiled, in order, those that are compiled by the
    thread that launches them with a star; empty without Triton."""
    compiled: list[tuple[str, float]] = []
    try:
        from triton import knobs
    except ImportError:
        return compiled

    def note(*, src: Any, metadata: Any, times: Any, cache_hit: bool, **_: Any) -> None:
        if not cache_hit:
            waiting = threading.current_thread() is threading.main_thread()
            compiled.append((src.name + "*" * waiting, times.total / 1e6))

    knobs.compilation.listener = note
    return compiled


def timed(owner: Any, name: str, title: str, took: dict[str, float]) -> None:
    inner = getattr(owner, name)

    def outer(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return inner(*args, **kwargs)
        finally:
            took[title] = time.perf_counter() - began

    setattr(owner, name, outer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tests", default=",".join(TESTS))
    parser.add_argument("--platform", default="auto")
    parser.add_argument("--began", type=float, default=BEGAN, help="when the process was asked for")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--options", default="{}", help="JSON of more engine options")
    asked = parser.parse_args()
    from allmetal.bench.report import environment
    from allmetal.platform.render import to_json

    stages, compiled = timed_stages(), timed_kernels()
    engine = Engine.from_config(
        EngineConfig(
            model=str(asked.folder),
            load_format="dummy",
            platform=asked.platform,
            max_model_len=9216,
            prefix_caching=False,
            **json.loads(asked.options),
        )
    )
    ready = time.time() - asked.began
    bench = Bench(engine)
    bench.seconds(bench.requests(1, PROMPT, 1))
    start = {"ready_s": ready, "first_token_s": time.time() - asked.began}
    say(
        "start",
        {**start, "imported_s": IMPORTED - asked.began, "stages_s": stages, "compiled": compiled},
    )
    bench.seconds(bench.requests(4, 64, 8))
    bench.seconds(bench.requests(1, 1024, 4))
    for test in filter(None, asked.tests.split(",")):
        began = time.perf_counter()
        found = measure(bench, test)
        say(test, {**found, "test_s": time.perf_counter() - began})
    if asked.profile:
        for shape in ((1, 1024, 200), (32, 1024, 200), (128, 1024, 200), (16, 8192, 1)):
            say("profile", {"shape": shape, "rows": profile(bench, *shape)})
    assert engine.plan is not None
    say("environment", environment(engine, sys.argv))
    say("plan", to_json(engine.plan))
    engine.close()


def measure(bench: Bench, test: str) -> dict[str, Any]:
    if test == "b1":
        return bench.single()
    if test.startswith("step"):
        return bench.batch(int(test.removeprefix("step")))
    return bench.prefill() if test == "prefill8k" else bench.throughput(test)


def say(name: str, value: Any) -> None:
    print("RESULT " + json.dumps([name, value]), flush=True)


if __name__ == "__main__":
    main()
