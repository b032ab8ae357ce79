"""allmetal and vLLM's CPU build in turn, in bfloat16 or on a checkpoint in its own format.

    python benchmarks/against_vllm.py --vllm PYTHON --theirs FOLDER --ours MODEL

What each figure is: benchmarks/contest/load.py.  PYTHON is the interpreter that has vLLM.  It asks
for tcmalloc and Intel's OpenMP by LD_PRELOAD: give them with --preload.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from contest.load import AT_ONCE
from contest.sides import Script
from contest.turns import in_turn, parser
from contest.worker import work


class VLLM:
    def __init__(self, model: str, eager: bool) -> None:
        from vllm import LLM, SamplingParams

        self._params = SamplingParams
        self._llm = LLM(
            model,
            dtype="bfloat16",
            max_model_len=2048,
            max_num_seqs=AT_ONCE,
            max_num_batched_tokens=2048,
            enforce_eager=eager,
            enable_prefix_caching=False,
            disable_log_stats=True,
        )

    def generate(self, prompts: list[list[int]], count: int) -> None:
        params = self._params(
            temperature=0, max_tokens=count, min_tokens=count, ignore_eos=True, detokenize=False
        )
        given = [{"prompt_token_ids": one} for one in prompts]
        outputs = self._llm.generate(given, params, use_tqdm=False)
        assert all(len(output.outputs[0].token_ids) == count for output in outputs)


def main() -> None:
    if sys.argv[1] in ("--work", "--startup"):
        job, model, eager = sys.argv[1:]
        work(lambda: VLLM(model, eager == "eager"), startup=job == "--startup")
        return
    options = parser(__doc__)
    options.add_argument("--vllm", required=True, metavar="PYTHON")
    options.add_argument("--theirs", type=Path, required=True, metavar="FOLDER")
    options.add_argument("--preload", default="", metavar="LIBRARIES", help="for LD_PRELOAD")
    options.add_argument("--eager", action="store_true", help="without torch.compile")
    options.add_argument("--name", default="vLLM")
    args = options.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    environment = {
        "LD_PRELOAD": args.preload,
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": f"{cores[0]}-{cores[-1]}",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "HF_HUB_OFFLINE": "1",
    }
    arguments = [str(args.theirs), "eager" if args.eager else "compiled"]
    weights = args.theirs / "model.safetensors"
    in_turn(args, Script(args.name, args.vllm, Path(__file__), arguments, weights, environment))


if __name__ == "__main__":
    main()
