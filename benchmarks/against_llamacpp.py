"""allmetal and llama.cpp in turn, each on a GGUF file, or allmetal on what the file was made from.

    python benchmarks/against_llamacpp.py --llamacpp build/bin --theirs Q4_K_M.gguf --ours MODEL

What each figure is: benchmarks/contest/load.py.  llama.cpp is measured by its own programs:
llama-bench for one sequence, llama-batched-bench for 16 (a static batch of 16, whose figure two of
them would have), llama-completion for the first token.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from contest.load import AT_ONCE, LENGTH, LONG, TEXT
from contest.startup import first_token
from contest.turns import in_turn, parser
from contest.worker import Figure


@dataclass(frozen=True)
class LlamaCpp:
    programs: Path
    model: Path
    name: str = "llama.cpp"

    @property
    def bytes_read(self) -> int | None:
        return self.model.stat().st_size

    def measure(self, metric: str) -> Figure:
        if metric == "decode":
            return self._bench("-p", "0", "-n", str(LENGTH), "-d", str(LENGTH))
        if metric == "prefill":
            return self._bench("-p", str(LONG), "-n", "0", "-ub", str(LONG), "-b", str(LONG))
        lengths = ("-npp", str(LENGTH), "-ntg", str(LENGTH), "-npl", str(AT_ONCE))
        sizes = ("-c", "8192", "-b", "2048", "-ub", "512", "--output-format", "jsonl")
        out, memory = self._run("llama-batched-bench", *sizes, *lengths)
        [line] = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        return Figure(AT_ONCE * LENGTH / (line["t_pp"] + line["t_tg"]), memory)

    def startup(self) -> Figure:
        command = [str(self.programs / "llama-completion"), "-m", str(self.model), "-p", TEXT]
        command += ["-n", "1", "-t", _threads(), "--temp", "0", "-no-cnv"]
        return first_token(command, "eval time", {})

    def close(self) -> None:
        pass

    def _bench(self, *what: str) -> Figure:
        out, memory = self._run("llama-bench", "-r", "1", "-o", "json", *what)
        return Figure(json.loads(out)[0]["avg_ts"], memory)

    def _run(self, program: str, *arguments: str) -> tuple[str, int]:
        """(what it wrote, bytes at its peak)."""
        command = [
            str(self.programs / program),
            "-m",
            str(self.model),
            "-t",
            _threads(),
            *arguments,
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        out = process.stdout.read().decode()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise RuntimeError(f"{command!r} failed:\n{out[-3000:]}")
        return out, usage.ru_maxrss * 1024


def _threads() -> str:
    return str(len(os.sched_getaffinity(0)))


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--llamacpp", type=Path, required=True, metavar="DIR", help="its programs")
    options.add_argument("--theirs", type=Path, required=True, metavar="GGUF")
    args = options.parse_args()
    in_turn(args, LlamaCpp(args.llamacpp, args.theirs))


if __name__ == "__main__":
    main()
