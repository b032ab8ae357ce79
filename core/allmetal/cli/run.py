"""`allmetal run MODEL [PROMPT]`: one prompt in, its completion out as it comes."""

from __future__ import annotations

import argparse
import sys
import time

from allmetal.cli.options import add_options, engine_options
from allmetal.cli.sampling import add_sampling_options, sampling_from
from allmetal.config import EngineConfig
from allmetal.errors import ConfigError, RequestError
from allmetal.request import RequestOutput

MAX_TOKENS = 512


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a folder, a .gguf file, or a hub name")
    parser.add_argument(
        "prompt", metavar="PROMPT", nargs="?", default="-", help="the prompt; -: standard input"
    )
    parser.add_argument(
        "--raw",
        action="store_true",
        help="complete the prompt as it is, also where the model has a chat template",
    )
    parser.add_argument("--quiet", action="store_true", help="print no figures at the end")
    add_sampling_options(parser, max_tokens=MAX_TOKENS)
    add_options(parser, EngineConfig, skip=("model",))


def execute(args: argparse.Namespace) -> int:
    options = engine_options(args)
    prompt = _read_prompt(args.prompt)
    from allmetal.engine.defaults import sampling_defaults
    from allmetal.engine.llm import LLM

    with LLM(**options) as llm:
        sampling = sampling_from(
            args, sampling_defaults(llm.generation_config), max_tokens=MAX_TOKENS
        )
        chat = not args.raw and llm.tokenizer.chat_template is not None
        timer = Timer()
        for output in llm.stream(
            llm.chat_prompt([{"role": "user", "content": prompt}]) if chat else prompt, sampling
        ):
            timer.show(output)
        timer.finish()
        if not args.quiet:
            print(timer.figures(), file=sys.stderr)
        return 0


def _read_prompt(prompt: str) -> str:
    if prompt != "-":
        return prompt
    if sys.stdin.isatty():
        raise ConfigError("there is no prompt", hint='allmetal run MODEL "Once upon a time"')
    return sys.stdin.read().removesuffix("\n")


class Timer:
    """Writes a growing output to standard output and keeps the times."""

    def __init__(self) -> None:
        self._start = self._last = time.perf_counter()
        self._first: float | None = None
        self._shown = 0
        self._newline = False
        self._output: RequestOutput | None = None

    def show(self, output: RequestOutput) -> None:
        self._output = output
        self._last = time.perf_counter()
        if self._first is None and output.outputs[0].token_ids:
            self._first = self._last
        if new := output.outputs[0].text[self._shown :]:
            sys.stdout.write(new)
            sys.stdout.flush()
            self._shown += len(new)
            self._newline = new.endswith("\n")

    def finish(self) -> None:
        """End the line.  Raises RequestError when the request failed in the engine."""
        if not self._newline:
            sys.stdout.write("\n")
            sys.stdout.flush()
        if self._output is not None and self._output.error is not None:
            raise RequestError(f"the device failed: {self._output.error}")

    def figures(self) -> str:
        """One line: lengths, time to the first token, speed after it, why it ended."""
        if self._output is None or self._first is None:
            return "nothing was generated"
        choice = self._output.outputs[0]
        num_prompt, num_out = len(self._output.prompt_token_ids), len(choice.token_ids)
        parts = [
            f"prompt {num_prompt} tokens",
            f"first token after {(self._first - self._start) * 1e3:.0f} ms",
            f"{num_out} tokens out",
        ]
        if num_out > 1 and self._last > self._first:
            parts.append(f"{(num_out - 1) / (self._last - self._first):.1f} tokens/s")
        return f"[{', '.join(parts)}; ended by {choice.finish_reason}]"
