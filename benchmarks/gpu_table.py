"""How near a GPU is to its limits, and how a rival does on the same card in the same run.

Usage: gpu_table.py [--shapes qwen3-0.6b llama-3.1-8b qwen3-8b] [--tests b1,step32,..]
                    [--rival FOLDER] [--json FILE]

A row a test: what was measured, the least time that the bytes and operations allow at the
bandwidth and matmul rate measured beforehand on this card, and the share of it that was reached;
with --rival (a folder whose `go.sh bench SHAPE:TESTS` leaves `vllm-SHAPE.json` in $OUT) what vLLM
does and the ratio, above 1 where allmetal is faster.  `gpu_measure.py` says what the tests are.

Each shape starts twice: with no kernel compiled, which is the run that is measured, and again.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shapes import SHAPES, Least, work_of, write

HERE = Path(__file__).parent
TESTS = "b1,step32,step128,step256,prefill8k,thr256,thr1000"
_CEILINGS = """
import json, sys
sys.path.insert(0, sys.argv[1])
from timing import measure_ceilings
found = measure_ceilings()
print(json.dumps({"bandwidth": found.bandwidth, "matmul": found.matmul}))
"""
MOST_USED = 3000
"""MiB of a card that nobody uses: the driver's own."""
Results = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`path`: where the figure is in the results of both.  `least` in the row's unit."""

    name: str
    ours: float | None
    rivals: float | None
    least: float | None
    more_is_better: bool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--tests", default=TESTS)
    parser.add_argument("--alone", default="", help="tests that the rival is spared")
    parser.add_argument("--once", action="store_true", help="do not start a second time")
    parser.add_argument("--rival", type=Path, help="folder with a rival's go.sh")
    parser.add_argument("--rival-seconds", type=int, default=280, help="for each shape")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--profile", action="store_true", help="name the busiest kernels too")
    parser.add_argument("--options", default="{}", help="JSON of more engine options")
    asked = parser.parse_args()
    refuse_company()
    ceilings = measured_ceilings()
    print("ceilings: {bandwidth:.4g} bytes/s, {matmul:.4g} operations/s".format(**ceilings))
    found: dict[str, Any] = {"date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    found |= {"ceilings": ceilings, "shapes": {}}
    with tempfile.TemporaryDirectory() as scratch:
        for name in asked.shapes:
            folder = write(name, Path(scratch, name))
            ours = run_ours(folder, asked, Path(scratch, "kernels", name))
            found["shapes"][name] = result = {"ours": ours, "rival": {}}
            keep(asked.json, found)
            if "plan" not in ours:
                raise SystemExit(f"{name}: no result of ours, so none is asked of the rival")
            if asked.rival:
                result["rival"] = run_rival(name, asked)
                keep(asked.json, found)
            limits = Least(work=work_of(SHAPES[name]), **ceilings)
            print(table(name, rows(ours, result["rival"], limits)), flush=True)


def refuse_company() -> None:
    """SystemExit where another process holds the card's memory: both would measure each other."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    used = int(
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
    )
    if used > MOST_USED:
        raise SystemExit(f"another process holds {used} MiB of the card's memory")


def keep(path: Path | None, found: Results) -> None:
    """After each part: the next may be stopped."""
    if path is not None:
        path.write_text(json.dumps(found, indent=1) + "\n")


def measured_ceilings() -> dict[str, float]:
    timing = HERE.parent / "platforms" / "cuda" / "bench"
    done = subprocess.run(
        [sys.executable, "-c", _CEILINGS, str(timing)], capture_output=True, text=True, check=True
    )
    ceilings: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return ceilings


def run_ours(folder: Path, asked: argparse.Namespace, cache: Path) -> Results:
    """The results of a process whose kernels are all compiled anew, and the start of another."""
    more = ["--options", asked.options]
    tests = ",".join(filter(None, (asked.tests, asked.alone)))
    found = child(folder, ["--tests", tests, *more, *["--profile"] * asked.profile], cache)
    if asked.once:
        return found
    again = child(folder, ["--tests", "", *more], cache)
    return {**found, "start_again": again.get("start", {})}


def child(folder: Path, arguments: Sequence[str], cache: Path) -> Results:
    command = [sys.executable, str(HERE / "gpu_measure.py"), str(folder), *arguments]
    process = subprocess.Popen(
        [*command, "--began", str(time.time())],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TRITON_CACHE_DIR": str(cache)},
    )
    found: Results = {}
    assert process.stdout is not None
    for line in process.stdout:
        if not line.startswith("RESULT "):
            continue
        name, value = json.loads(line.removeprefix("RESULT "))
        if name == "profile":
            print(f"{folder.name}, busiest at {value['shape']}", *value["rows"], sep="\n")
            continue
        found[name] = value
        if name not in ("environment", "plan"):
            print(folder.name, name, json.dumps(value), flush=True)
    if process.wait() != 0:
        print(f"{folder.name}: exit status {process.returncode}", flush=True)
    return found


def run_rival(name: str, asked: argparse.Namespace) -> Results:
    """What it had measured when its time was over.  Nothing of it is left running."""
    out = Path(os.environ.get("OUT", "."))
    path = out / f"vllm-{name}.json"
    path.unlink(missing_ok=True)
    command = ["bash", str(asked.rival / "go.sh"), "bench", f"{name}:{asked.tests}"]
    seconds = str(asked.rival_seconds)
    environment = {**os.environ, "OUT": str(out), "PEER_T": seconds}
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        process.wait(asked.rival_seconds + 60)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return json.loads(path.read_text()) if path.exists() else {}


def rows(ours: Results, rival: Results, limits: Least) -> list[Row]:
    theirs: Results = rival.get("tests", {})
    most = ours.get("plan", {}).get("max_num_seqs") or 256
    made = [
        Row(
            name="decode, 1 sequence of 512, ms a token",
            ours=best(ours, "b1", "ms_per_token"),
            rivals=best(theirs, "b1", "best"),
            least=1e3 * limits.decode(1, 512 + 128),
            more_is_better=False,
        )
    ]
    made += [
        Row(
            name=f"decode step, {count} sequences of 1024, ms",
            ours=best(ours, f"step{count}", "median_ms"),
            rivals=best(theirs, f"step{count}", "median_ms"),
            least=1e3 * limits.decode(count, 1024 + 96),
            more_is_better=False,
        )
        for count in (32, 128, 256)
    ]
    made += [
        Row(
            name=f"prefill, {count} of 8192, tokens/s",
            ours=best(ours, "prefill8k", key),
            rivals=best(theirs, "prefill8k", key),
            least=count * 8192 / limits.prefill(count, 8192),
            more_is_better=True,
        )
        for count, key in ((1, "one_tok_s"), (16, "many_tok_s"))
    ]
    made += [
        Row(
            name=f"{count} requests, {prompt} in, {output} out: tokens/s out",
            ours=best(ours, name, "out_tok_s"),
            rivals=best(theirs, name, "out_tok_s"),
            least=count * output / limits.generate(count, prompt, output, most),
            more_is_better=True,
        )
        for name, count, prompt, output in (("thr256", 256, 512, 256), ("thr1000", 1000, 1024, 128))
    ]
    first = Row(
        name="first token of 512, ms",
        ours=best(ours, "b1", "ttft_ms"),
        rivals=best(theirs, "b1", "ttft_ms"),
        least=1e3 * limits.prefill(1, 512),
        more_is_better=False,
    )
    rival_start = rival["import_s"] + rival["startup_s"] if "startup_s" in rival else None
    starts = [
        Row(
            name=f"process start to first token, {name}, s",
            ours=best(ours, key, "first_token_s"),
            rivals=rival_start,
            least=None,
            more_is_better=False,
        )
        for name, key in (("no kernel compiled", "start"), ("again", "start_again"))
    ]
    return [*made, first, *starts]


def best(results: Mapping[str, Any], test: str, key: str) -> float | None:
    value = results.get(test, {}).get(key)
    if value is None:
        return None
    return float(min(value) if isinstance(value, list) else value)


def table(name: str, made: Sequence[Row]) -> str:
    width = max(len(row.name) for row in made)
    lines = [f"{name:{width}}  {'allmetal':>10}  {'limit':>10}  of it  {'rival':>10}  ratio"]
    for row in made:
        cells = [f"{row.name:{width}}", _number(row.ours), _number(row.least)]
        cells.append(_share(row.ours, row.least, row.more_is_better, "{:4.0%} "))
        cells.append(_number(row.rivals))
        cells.append(_share(row.ours, row.rivals, row.more_is_better, "{:5.2f}"))
        lines.append("  ".join(cells))
    return "\n".join(lines)


def _number(value: float | None) -> str:
    if value is None:
        return f"{'-':>10}"
    return f"{value:10.0f}" if value >= 1000 else f"{value:10.3f}"


def _share(ours: float | None, other: float | None, more_is_better: bool, form: str) -> str:
    if not ours or not other:
        return "    -"
    return form.format(ours / other if more_is_better else other / ours)


if __name__ == "__main__":
    main()
