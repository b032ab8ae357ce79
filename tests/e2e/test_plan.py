"""One plan: explained before loading, printed at start, served, and stamped into a benchmark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from servers import Server

OPTIONS = ["--kv-cache-memory", "16MiB", "--threads", "1", "--max-num-seqs", "7"]


def allmetal(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "allmetal", *words], text=True, capture_output=True, check=True
    )
    return done.stdout


def decisions(plan: dict[str, Any]) -> dict[str, tuple[str, str, str]]:
    return {r["feature"]: (r["asked"], r["got"], r["by"]) for r in plan["decisions"]}


def test_the_plan_is_one_wherever_it_is_shown(tiny_llama: Path, tmp_path: Path) -> None:
    foretold = json.loads(allmetal("explain", str(tiny_llama), "--json", *OPTIONS))["plan"]
    with Server(tiny_llama, "--max-num-seqs", "7") as server:
        served = server.get("/v1/platform").json()
        log = server.log
    file = tmp_path / "bench.json"
    lengths = ["--input-len", "8", "--output-len", "2", "--repetitions", "1"]
    allmetal("bench", "latency", str(tiny_llama), "--json", str(file), *lengths, *OPTIONS)
    stamped = json.loads(file.read_text())["plan"]

    assert decisions(foretold) == decisions(served) == decisions(stamped)
    assert foretold["kernels"] == served["kernels"] == stamped["kernels"]
    assert served["kernels"]
    assert decisions(served)["max_num_seqs"] == ("7", "7", "user")
    for feature, (_, got, _) in decisions(served).items():
        (line,) = [x for x in log.splitlines() if x.lstrip("! ").startswith(f"{feature} ")]
        assert got in line
