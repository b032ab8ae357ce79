"""The two sides of a contest."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from contest.load import AT_ONCE, TEXT
from contest.startup import first_token
from contest.worker import FIRST_TOKEN, Figure, Worker, library_path, work


class Side(Protocol):
    """`bytes_read`: of weights, for each token that one sequence decodes; None if unknown."""

    @property
    def name(self) -> str: ...
    @property
    def bytes_read(self) -> int | None: ...
    def measure(self, metric: str) -> Figure: ...
    def startup(self) -> Figure: ...
    def close(self) -> None: ...


@dataclass
class Script:
    """An engine that a script of this folder drives, in an interpreter of its own."""

    name: str
    python: str
    script: Path
    arguments: Sequence[str]
    weights: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    _worker: Worker | None = None

    @property
    def bytes_read(self) -> int | None:
        return self.weights.stat().st_size if self.weights else None

    def _command(self, job: str) -> list[str]:
        return [self.python, str(self.script), job, *self.arguments]

    def measure(self, metric: str) -> Figure:
        if self._worker is None:
            self._worker = Worker(self._command("--work"), self.environment)
        return self._worker.measure(metric)

    def startup(self) -> Figure:
        return first_token(self._command("--startup"), FIRST_TOKEN, self.environment)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None


@dataclass
class Ours:
    """allmetal on its CPU platform; `options` are fields of EngineConfig."""

    model: str
    options: Mapping[str, str]
    name: str = "allmetal"
    _worker: Worker | None = None

    @property
    def bytes_read(self) -> int | None:
        from contextlib import closing

        from allmetal.checkpoint import open_checkpoint
        from allmetal.config import EngineConfig

        with closing(open_checkpoint(EngineConfig(model=self.model))) as checkpoint:
            sizes = {name: info.nbytes for name, info in checkpoint.tensors.items()}
        if "int8" in self.options.values():
            return None
        tied = "lm_head.weight" not in sizes
        return sum(size for name, size in sizes.items() if tied or "embed_tokens" not in name)

    def measure(self, metric: str) -> Figure:
        if self._worker is None:
            command = [sys.executable, "-m", "contest.sides", self.model, json.dumps(self.options)]
            self._worker = Worker(command, library_path())
        return self._worker.measure(metric)

    def startup(self) -> Figure:
        """Through the command line, text in and text out."""
        options = [
            word
            for name, value in self.options.items()
            for word in (f"--{name.replace('_', '-')}", value)
        ]
        command = [sys.executable, "-m", "allmetal", "run", self.model, TEXT, "--raw"]
        command += ["--max-tokens", "1", "--platform", "cpu", *options]
        return first_token(command, "first token after", {})

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None


class _Allmetal:
    def __init__(self, model: str, options: Mapping[str, Any]) -> None:
        from allmetal import LLM, SamplingParams

        self._params = SamplingParams
        self._llm = LLM(
            model,
            platform="cpu",
            max_num_seqs=AT_ONCE,
            max_model_len=2048,
            prefix_caching=False,
            **options,
        )

    def generate(self, prompts: list[list[int]], count: int) -> None:
        params = self._params(temperature=0.0, max_tokens=count, ignore_eos=True)
        outputs = self._llm.generate(prompts, params)
        assert all(len(output.outputs[0].token_ids) == count for output in outputs)


if __name__ == "__main__":
    work(lambda: _Allmetal(sys.argv[1], json.loads(sys.argv[2])))
