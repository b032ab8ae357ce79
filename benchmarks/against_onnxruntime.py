"""allmetal and onnxruntime-genai in turn; its model as its own builder makes it (int8, int4).

    python benchmarks/against_onnxruntime.py --onnxruntime PYTHON --theirs FOLDER --ours MODEL

What each figure is: benchmarks/contest/load.py.  PYTHON is the interpreter that has
onnxruntime-genai, which runs static batches: 32 requests are two of 16.
"""

from __future__ import annotations

import sys
from pathlib import Path

from contest.load import AT_ONCE
from contest.sides import Script
from contest.turns import in_turn, parser
from contest.worker import work


class OnnxRuntime:
    def __init__(self, model: str) -> None:
        import numpy
        import onnxruntime_genai

        self._np, self._genai = numpy, onnxruntime_genai
        self._model = onnxruntime_genai.Model(model)

    def generate(self, prompts: list[list[int]], count: int) -> None:
        for first in range(0, len(prompts), AT_ONCE):
            self._batch(prompts[first : first + AT_ONCE], count)

    def _batch(self, prompts: list[list[int]], count: int) -> None:
        length = len(prompts[0]) + count
        params = self._genai.GeneratorParams(self._model)
        params.set_search_options(
            max_length=length, min_length=length, do_sample=False, batch_size=len(prompts)
        )
        generator = self._genai.Generator(self._model, params)
        generator.append_tokens(self._np.array(prompts, dtype=self._np.int32))
        for made in range(count):
            assert not generator.is_done(), made
            generator.generate_next_token()


def main() -> None:
    if sys.argv[1] in ("--work", "--startup"):
        work(lambda: OnnxRuntime(sys.argv[2]), startup=sys.argv[1] == "--startup")
        return
    options = parser(__doc__)
    options.add_argument("--onnxruntime", required=True, metavar="PYTHON")
    options.add_argument("--theirs", type=Path, required=True, metavar="FOLDER")
    args = options.parse_args()
    weights = args.theirs / "model.onnx.data"
    side = Script("onnxruntime", args.onnxruntime, Path(__file__), [str(args.theirs)], weights)
    in_turn(args, side)


if __name__ == "__main__":
    main()
