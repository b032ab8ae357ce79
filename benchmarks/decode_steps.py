"""How long a decode step takes, and how much of it the device stands idle.

Usage: decode_steps.py --platform NAME [--batches 1 32] [--shape qwen3-0.6b] [--profile FOLDER]

Weights are random.  A step's time is measured under the engine; "device" is that of the recorded
step alone, launched again and again with nothing between.  The difference is what the host and
the copies cost.  With --profile the share of idle time is also read off a trace, whose recording
widens the gaps between kernels.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from shapes import SHAPES, write

from allmetal.config import EngineConfig
from allmetal.engine.engine import Engine
from allmetal.request import Request, SamplingParams

WARMUP = 30
PROMPT = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--platform", default="auto")
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--sampled", action="store_true", help="temperature and top-p")
    parser.add_argument("--no-graph-capture", dest="graphs", action="store_false")
    parser.add_argument("--profile", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write(asked.shape, Path(folder))
        began = time.perf_counter()
        engine = Engine.from_config(
            EngineConfig(
                model=folder,
                load_format="dummy",
                platform=asked.platform,
                graph_capture=asked.graphs,
            )
        )
        print(f"{asked.shape}: ready after {time.perf_counter() - began:.1f} s")
    if engine.plan is not None:
        print(*(row for row in engine.plan.decisions if row.feature == "graph_capture"), sep="\n")
    print("batch  ms/step  tokens/s  device ms  idle %")
    for batch in asked.batches:
        row = measure(engine, batch, asked.steps, sampled=asked.sampled, profile=asked.profile)
        print(row, flush=True)
    engine.close()


def measure(engine: Engine, batch: int, steps: int, *, sampled: bool, profile: Path | None) -> str:
    requests = requests_of(engine, batch, steps, sampled=sampled)
    for request in requests:
        engine.add(request)
    while len(engine.step()) < batch:
        pass
    run(engine, WARMUP)
    took = run(engine, steps) / steps
    line = f"{batch:5}  {took * 1e3:7.3f}  {batch / took:8.0f}"
    alone = replay_alone(engine, batch, steps)
    if alone is not None:
        line += f"  {alone * 1e3:9.3f}  {100 * (1 - alone / took):6.1f}"
    if profile is not None:
        line = f"{traced(engine, profile, batch)}\n{line}"
    engine.abort([request.request_id for request in requests])
    while engine.has_work:
        engine.step()
    return line


def requests_of(engine: Engine, batch: int, steps: int, *, sampled: bool) -> list[Request]:
    rng = random.Random(batch)
    kind: dict[str, Any] = {"temperature": 0.8, "top_p": 0.95} if sampled else {"temperature": 0.0}
    return [
        Request(
            request_id=f"{batch}-{number}",
            prompt_token_ids=[rng.randrange(engine.loaded.vocab_size) for _ in range(PROMPT)],
            sampling=SamplingParams(max_tokens=4 * steps + 1000, ignore_eos=True, **kind),
        )
        for number in range(batch)
    ]


def run(engine: Engine, steps: int) -> float:
    """Seconds of so many steps."""
    device = engine.executor._device  # type: ignore[attr-defined]
    device.synchronize()
    began = time.perf_counter()
    for _ in range(steps):
        engine.step()
    device.synchronize()
    return time.perf_counter() - began


def replay_alone(engine: Engine, batch: int, times: int) -> float | None:
    """Seconds of the last step's graph, launched again and again."""
    runner: Any = engine.executor._runner  # type: ignore[attr-defined]
    if runner._graphs.decode is None:
        return None
    launches = runner._graphs.decode._steps.launches
    sizes = [size for size in sorted(launches) if size >= batch]
    if not sizes:
        return None
    graph = launches[sizes[0]].graph
    runner._device.synchronize()
    began = time.perf_counter()
    for _ in range(times):
        graph.replay()
    runner._device.synchronize()
    return (time.perf_counter() - began) / times


def traced(engine: Engine, folder: Path, batch: int, steps: int = 50) -> str:
    """The busiest kernels, and the share of the time in which none ran."""
    with torch.profiler.profile(activities=torch.profiler.supported_activities()) as profiler:
        run(engine, steps)
    path = folder / f"steps{batch}.json"
    profiler.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    path.unlink()
    spans = sorted(
        (e["ts"], e["ts"] + e["dur"], e["name"])
        for e in events
        if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    )
    busy, end = 0.0, spans[0][0]
    totals: dict[str, list[float]] = {}
    for start, stop, name in spans:
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
        totals.setdefault(name[:60], []).append(stop - start)
    whole = end - spans[0][0]
    lines = [
        f"{sum(each) / steps:9.1f} us in {len(each) / steps:6.1f} of {name}"
        for name, each in sorted(totals.items(), key=lambda item: -sum(item[1]))[:14]
    ]
    per_step = f"{len(spans) / steps:.1f} a step, {busy / steps:.0f} of {whole / steps:.0f} us busy"
    return "\n".join(
        [f"traced at {batch}: idle {100 * (1 - busy / whole):.1f} %, {per_step}", *lines]
    )


if __name__ == "__main__":
    main()
