"""Two thousand slow streams, held at once."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from servers import Server, until

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "soak.py"
STREAMS = 2000


@pytest.mark.slow
def test_two_thousand_streams_are_held_at_once_and_nothing_stays_of_them(tiny_llama: Path) -> None:
    # Long enough that the first one has not ended when the last one begins.
    flags = ["--platform", "null", "--max-num-seqs", str(STREAMS + 48)]
    with Server(tiny_llama, *flags, "--kv-cache-memory", "896MiB") as server:
        process = psutil.Process(server.process.pid)
        files = process.num_fds()
        command = [sys.executable, str(SCRIPT), server.url, "--streams", str(STREAMS)]
        done = subprocess.run(
            [*command, "--hold", "6"], capture_output=True, text=True, timeout=110, check=False
        )

        assert done.returncode == 0, done.stderr
        call = ast.parse(done.stdout, mode="eval").body
        assert isinstance(call, ast.Call)
        report = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
        assert (report["held"], report["failed"], report["starved"]) == (STREAMS, 0, 0), report
        assert report["idle_again_in_s"] is not None
        until(lambda: process.num_fds() <= files + 2, 10)
        assert server.post("/v1/completions", {"prompt": "x", "max_tokens": 3}).status_code == 200
        assert "Traceback" not in server.log
