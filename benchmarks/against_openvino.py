"""allmetal and OpenVINO GenAI in turn; its model as optimum-cli exports it (fp16, int8, int4).

    python benchmarks/against_openvino.py --openvino PYTHON --theirs FOLDER --ours MODEL

What each figure is: benchmarks/contest/load.py.  PYTHON is the interpreter that has openvino-genai.
One request at a time runs in its LLMPipeline, many in its ContinuousBatchingPipeline, both loaded
when they are first needed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from contest.load import AT_ONCE
from contest.sides import Script
from contest.turns import in_turn, parser
from contest.worker import work


class OpenVINO:
    def __init__(self, model: str) -> None:
        import numpy
        import openvino
        import openvino_genai

        self._np, self._ov, self._genai = numpy, openvino, openvino_genai
        self._model = model
        self._one: Any = None
        self._many: Any = None

    def generate(self, prompts: list[list[int]], count: int) -> None:
        config = self._genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = count
        config.ignore_eos, config.do_sample = True, False
        given = [self._ov.Tensor(self._np.array([one], dtype=self._np.int64)) for one in prompts]
        if len(prompts) == 1:
            if self._one is None:
                self._many = None
                self._one = self._genai.LLMPipeline(self._model, "CPU", ATTENTION_BACKEND="SDPA")
            lengths = [len(self._one.generate(given[0], config).tokens[0])]
        else:
            if self._many is None:
                self._one = None
                self._many = self._batching()
            results = self._many.generate(given, [config] * len(given))
            lengths = [len(result.m_generation_ids[0]) for result in results]
        assert all(length == count for length in lengths), lengths

    def _batching(self) -> Any:
        scheduler = self._genai.SchedulerConfig()
        scheduler.max_num_seqs = AT_ONCE
        scheduler.cache_size = 2
        scheduler.max_num_batched_tokens = 2048
        scheduler.dynamic_split_fuse = True
        return self._genai.ContinuousBatchingPipeline(self._model, scheduler, "CPU", {})


def main() -> None:
    if sys.argv[1] in ("--work", "--startup"):
        work(lambda: OpenVINO(sys.argv[2]), startup=sys.argv[1] == "--startup")
        return
    options = parser(__doc__)
    options.add_argument("--openvino", required=True, metavar="PYTHON")
    options.add_argument("--theirs", type=Path, required=True, metavar="FOLDER")
    args = options.parse_args()
    weights = args.theirs / "openvino_model.bin"
    in_turn(args, Script("OpenVINO", args.openvino, Path(__file__), [str(args.theirs)], weights))


if __name__ == "__main__":
    main()
