"""allmetal and CTranslate2 in turn; its model as ct2-transformers-converter makes it.

    python benchmarks/against_ctranslate2.py --ctranslate2 PYTHON --theirs FOLDER --ours MODEL

What each figure is: benchmarks/contest/load.py.  PYTHON is the interpreter that has ctranslate2,
which runs static batches: 32 requests are two of 16.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from contest.load import AT_ONCE
from contest.sides import Script
from contest.turns import in_turn, parser
from contest.worker import work


class CTranslate2:
    def __init__(self, model: str, compute_type: str) -> None:
        import ctranslate2

        self._generator = ctranslate2.Generator(
            model,
            device="cpu",
            compute_type=compute_type,
            intra_threads=len(os.sched_getaffinity(0)),
            inter_threads=1,
        )
        self._tokens = json.loads((Path(model) / "vocabulary.json").read_text())

    def generate(self, prompts: list[list[int]], count: int) -> None:
        for first in range(0, len(prompts), AT_ONCE):
            given = [[self._tokens[i] for i in one] for one in prompts[first : first + AT_ONCE]]
            results = self._generator.generate_batch(
                given,
                max_length=count,
                min_length=count,
                include_prompt_in_result=False,
                sampling_topk=1,
                end_token=[],
                max_batch_size=AT_ONCE,
            )
            assert all(len(result.sequences_ids[0]) >= count for result in results)


def main() -> None:
    if sys.argv[1] in ("--work", "--startup"):
        job, model, kind = sys.argv[1:]
        work(lambda: CTranslate2(model, kind), startup=job == "--startup")
        return
    options = parser(__doc__)
    options.add_argument("--ctranslate2", required=True, metavar="PYTHON")
    options.add_argument("--theirs", type=Path, required=True, metavar="FOLDER")
    options.add_argument("--compute-type", default="int8")
    args = options.parse_args()
    arguments = [str(args.theirs), args.compute_type]
    weights = args.theirs / "model.bin"
    side = Script("CTranslate2", args.ctranslate2, Path(__file__), arguments, weights)
    in_turn(args, side)


if __name__ == "__main__":
    main()
