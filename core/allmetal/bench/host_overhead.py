"""Host work per step: the scheduler, block tables and results of `n` running sequences, with an
executor that answers at once.  What is measured is all that stands between two steps of a device.

    python -m allmetal.bench.host_overhead [--seqs 256] [--steps 500] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

from allmetal.engine.engine import Engine
from allmetal.engine.limits import Limits
from allmetal.executor.contract import LoadedModel
from allmetal.executor.null import NullExecutor
from allmetal.platform.kv import KVSpec
from allmetal.request import Request, SamplingParams

_PROMPT = 128
_FULL = KVSpec(kind="full", num_kv_heads=8, head_dim=128, dtype="bfloat16")
_SLIDING = KVSpec(kind="sliding_window", num_kv_heads=8, head_dim=128, dtype="bfloat16", window=512)
MODELS = {"full attention": (_FULL,) * 28, "5 sliding : 1 full": ((_SLIDING,) * 5 + (_FULL,)) * 5}


def measure(kv_specs: tuple[KVSpec, ...], num_seqs: int, num_steps: int) -> dict[str, float]:
    """Milliseconds a step while all sequences decode; every step must bring `num_seqs` tokens."""
    vocab_size = 32_000
    kv_bytes = 2 * num_seqs * (_PROMPT + num_steps + 80) * 1 << 17
    loaded = LoadedModel(
        kv_specs=kv_specs, kv_bytes=kv_bytes, weight_bytes=0, vocab_size=vocab_size
    )
    limits = Limits(
        max_model_len=8192, max_num_seqs=num_seqs, max_num_batched_tokens=8192, block_size=16
    )
    engine = Engine(NullExecutor(loaded), limits)
    for number in range(num_seqs):
        prompt = [(number * 131 + i * 7) % vocab_size for i in range(_PROMPT + number % 16)]
        sampling = SamplingParams(max_tokens=num_steps + 64)
        engine.add(
            Request(
                request_id=f"r{number}",
                prompt_token_ids=prompt,
                sampling=sampling,
                eos_token_ids=(2,),
            )
        )
    while len(engine.step()) < num_seqs:
        pass
    times = []
    for _ in range(num_steps):
        begin = time.perf_counter()
        deltas = engine.step()
        times.append((time.perf_counter() - begin) * 1e3)
        assert len(deltas) == num_seqs
    engine.close()
    quantiles = statistics.quantiles(times, n=100)
    return {"median_ms": quantiles[49], "p99_ms": quantiles[98], "max_ms": max(times)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seqs", type=int, default=256, help="sequences running")
    parser.add_argument("--steps", type=int, default=500, help="steps timed")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    figures = {name: measure(specs, args.seqs, args.steps) for name, specs in MODELS.items()}
    print(f"host work a step at {args.seqs} running sequences, Python {platform.python_version()}")
    for name, figure in figures.items():
        print(f"{name:20}", "  ".join(f"{key} {value:.3f}" for key, value in figure.items()))
    if args.json:
        args.json.write_text(json.dumps({"seqs": args.seqs, "figures": figures}, indent=1))


if __name__ == "__main__":
    main()
