"""allmetal and transformers on one checkpoint, in turn, in one run: decode, prefill, 16 at once.

Each measurement is a process of its own, so that neither holds memory or threads while the other
is timed; rounds alternate between the two, and the ratio of the medians is what counts.  Without
MODEL a random checkpoint of Qwen3-0.6B's shape is made (1.2 GB).

    python benchmarks/against_transformers.py [MODEL] [--rounds 3] [--json FILE]

Figures, tokens per second:
  decode   127 / (time of 128 in, 128 out - time of 128 in, 1 out), one request
  prefill  1024 / time of 1024 in, 1 out
  serve16  32 requests of 128 in, 128 out, at most 16 at once, by each engine's own scheduler
           (transformers: `generate_batch`, its continuous batching)
  static16 the same requests as two static batches of 16 (transformers' `generate`; allmetal's
           figure is that of serve16)
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

METRICS = ("decode", "prefill", "serve16", "static16")
NUM_REQUESTS, AT_ONCE, LENGTH = 32, 16, 128


def prompt(length: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(300, 31_000) for _ in range(length)]


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


class Allmetal:
    def __init__(self, model: str) -> None:
        from allmetal import LLM, SamplingParams

        self._params = SamplingParams
        self._llm = LLM(model, max_num_seqs=AT_ONCE, max_model_len=2048, prefix_caching=False)

    def generate(self, prompts: list[list[int]], count: int) -> None:
        params = self._params(temperature=0.0, max_tokens=count, ignore_eos=True)
        outputs = self._llm.generate(prompts, params)
        assert all(len(output.outputs[0].token_ids) == count for output in outputs)

    serve = generate


class Transformers:
    def __init__(self, model: str) -> None:
        import torch
        import transformers

        transformers.logging.set_verbosity_error()
        self._torch, self._t = torch, transformers
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            model, dtype=torch.bfloat16
        ).eval()

    def _config(self, count: int) -> object:
        return self._t.GenerationConfig(
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            eos_token_id=-1,
            pad_token_id=0,
        )

    def generate(self, prompts: list[list[int]], count: int) -> None:
        for first in range(0, len(prompts), AT_ONCE):
            ids = self._torch.tensor(prompts[first : first + AT_ONCE])
            with self._torch.inference_mode():
                out = self._model.generate(
                    ids,
                    attention_mask=self._torch.ones_like(ids),
                    generation_config=self._config(count),
                )
            assert out.shape[1] == ids.shape[1] + count

    def serve(self, prompts: list[list[int]], count: int) -> None:
        out = self._model.generate_batch(inputs=prompts, generation_config=self._config(count))
        assert len(out) == len(prompts)
        assert all(len(one.generated_tokens) == count for one in out.values())


ENGINES = {"allmetal": Allmetal, "transformers": Transformers}


def measure(name: str, model: str, metric: str) -> float:
    engine = ENGINES[name](model)
    engine.generate([prompt(16, 0)], 4)  # first calls build caches and wake threads
    if metric == "decode":
        first = seconds(lambda: engine.generate([prompt(LENGTH, 1)], 1))
        whole = seconds(lambda: engine.generate([prompt(LENGTH, 2)], LENGTH))
        return (LENGTH - 1) / (whole - first)
    if metric == "prefill":
        return 1024 / seconds(lambda: engine.generate([prompt(1024, 3)], 1))
    prompts = [prompt(LENGTH, 100 + i) for i in range(NUM_REQUESTS)]
    run = engine.generate if metric == "static16" else engine.serve
    return NUM_REQUESTS * LENGTH / seconds(lambda: run(prompts, LENGTH))


def make_model(folder: Path) -> Path:
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config

    if not (folder / "model.safetensors").exists():
        config = Qwen3Config(
            hidden_size=1024,
            num_hidden_layers=28,
            num_attention_heads=16,
            num_key_value_heads=8,
            head_dim=128,
            intermediate_size=3072,
            vocab_size=151_936,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
        )
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        model.save_pretrained(folder)
    return folder


def in_turn(model: Path, metrics: list[str], rounds: int) -> dict[str, dict[str, list[float]]]:
    figures: dict[str, dict[str, list[float]]] = {m: {e: [] for e in ENGINES} for m in metrics}
    for metric in metrics:
        for _ in range(rounds):
            for engine in ENGINES:
                if (engine, metric) == ("allmetal", "static16"):
                    continue
                command = [sys.executable, __file__, str(model), "--one", engine, metric]
                out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                figures[metric][engine].append(float(out.split()[-1]))
                load = os.getloadavg()[0]
                print(f"{metric} {engine} {figures[metric][engine][-1]:.2f} tokens/s, load {load}")
    if "static16" in figures and "serve16" in figures:
        figures["static16"]["allmetal"] = figures["serve16"]["allmetal"]
    return figures


def report(figures: dict[str, dict[str, list[float]]]) -> None:
    import torch
    import transformers

    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"{versions}; medians, tokens/s")
    print(f"{'':10}{'allmetal':>12}{'transformers':>14}{'ratio':>8}")
    for metric, engines in figures.items():
        if all(engines.values()):
            ours, theirs = (statistics.median(values) for values in engines.values())
            print(f"{metric:10}{ours:12.1f}{theirs:14.1f}{ours / theirs:8.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", help="a checkpoint folder; default: a random one")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each")
    parser.add_argument("--metrics", nargs="+", default=list(METRICS), choices=METRICS)
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--one", nargs=2, metavar=("ENGINE", "METRIC"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(measure(args.one[0], args.model, args.one[1]))
        return
    from allmetal.config import cache_dir

    model = Path(args.model) if args.model else make_model(cache_dir() / "bench" / "qwen3-0.6b")
    figures = in_turn(model, args.metrics, args.rounds)
    report(figures)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
