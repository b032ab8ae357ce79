"""Our load client and vLLM's own, in turn against one server of ours: do they see the same?

    python benchmarks/load_clients.py MODEL --vllm PATH/bin/vllm [--rate 4] [--rounds 3]

Both send the same number of requests of equally long random prompts, in a closed loop or at a
rate, and ask for the same number of tokens.  Each round runs both, in turns that change; what is
printed are medians over rounds, and the spread of each client's own rounds, which is the noise.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from allmetal.bench.load.hosted import hosted

# Of our figures -> of vLLM's.
FIGURES = {
    ("requests", "median"): "request_throughput",
    ("output", "median"): "output_throughput",
    ("ttft", "mean"): "mean_ttft_ms",
    ("ttft", "median"): "median_ttft_ms",
    ("ttft", "p99"): "p99_ttft_ms",
    ("tpot", "mean"): "mean_tpot_ms",
    ("tpot", "median"): "median_tpot_ms",
    ("tpot", "p99"): "p99_tpot_ms",
    ("itl", "mean"): "mean_itl_ms",
    ("itl", "median"): "median_itl_ms",
    ("itl", "p99"): "p99_itl_ms",
    ("e2e", "mean"): "mean_e2el_ms",
    ("e2e", "median"): "median_e2el_ms",
    ("e2e", "p99"): "p99_e2el_ms",
}


def ours(args: argparse.Namespace, url: str, seed: int, folder: Path) -> dict[str, float]:
    file = folder / "ours.json"
    load = ["--rate", str(args.rate)] if args.rate else ["--concurrency", str(args.concurrency)]
    words = [sys.executable, "-m", "allmetal", "bench", "serve", url, "--json", str(file), *load]
    words += ["--requests", str(args.requests), "--input-len", str(args.input_len)]
    words += ["--output-len", str(args.output_len), "--tokenizer", args.tokenizer or args.model]
    words += ["--workload-seed", str(seed), "--warmup", "4"]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
    made = json.loads(file.read_text())
    assert made["counts"]["failed"] == 0, done.stdout
    print("\n".join(line for line in done.stdout.splitlines() if line.startswith("!")))
    return {f"{a} {b}": made["figures"][a][b] for a, b in FIGURES}


def served(url: str) -> str:
    with urllib.request.urlopen(f"{url}/v1/models") as answer:
        return json.load(answer)["data"][0]["id"]


def theirs(args: argparse.Namespace, url: str, seed: int, folder: Path) -> dict[str, float]:
    load = ["--request-rate", str(args.rate)]
    if not args.rate:
        load = ["--request-rate", "inf", "--max-concurrency", str(args.concurrency)]
    words = [args.vllm, "bench", "serve", "--base-url", url, "--model", served(url), *load]
    words += ["--backend", "openai", "--tokenizer", args.tokenizer or args.model]
    words += ["--dataset-name", "random", "--random-input-len", str(args.input_len)]
    words += ["--random-output-len", str(args.output_len), "--num-prompts", str(args.requests)]
    words += ["--num-warmups", "4", "--ignore-eos", "--seed", str(seed), "--temperature", "0"]
    words += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,99"]
    words += ["--save-result", "--result-dir", str(folder), "--result-filename", "theirs.json"]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    made = json.loads((folder / "theirs.json").read_text())
    assert made["completed"] == args.requests, done.stdout[-3000:]
    return {f"{a} {b}": made[name] for (a, b), name in FIGURES.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model")
    parser.add_argument("--vllm", required=True, help="the command of an installed vLLM")
    parser.add_argument("--tokenizer", help="default: the model's")
    parser.add_argument("--url", help="of a server that runs already; MODEL is its tokenizer then")
    parser.add_argument("--serve", default="", help="more words for allmetal serve")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=64)
    args = parser.parse_args()
    rounds: dict[str, list[dict[str, float]]] = {"ours": [], "vLLM's": []}
    clients = [("ours", ours), ("vLLM's", theirs)]
    words = [args.model, "--served-model-name", "served", *shlex.split(args.serve)]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        url = args.url or stack.enter_context(hosted(words)).url
        for number in range(args.rounds):
            for name, client in clients[:: -1 if number % 2 else 1]:
                rounds[name].append(client(args, url, number, Path(folder)))
                print(f"round {number}, {name}", file=sys.stderr, flush=True)
    print(f"{'figure':<18}{'ours':>12}{'spread':>8}{'vLLM client':>14}{'spread':>8}{'ratio':>8}")
    for a, b in FIGURES:
        values = [[made[f"{a} {b}"] for made in rounds[name]] for name, _ in clients]
        middle = [statistics.median(each) for each in values]
        spread = [max(each) / min(each) for each in values]
        print(
            f"{a + ' ' + b:<18}{middle[0]:>12.2f}{spread[0]:>8.2f}{middle[1]:>14.2f}"
            f"{spread[1]:>8.2f}{middle[0] / middle[1]:>8.3f}"
        )


if __name__ == "__main__":
    main()
