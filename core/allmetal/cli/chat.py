"""`allmetal chat MODEL`: a conversation in the terminal, or line by line from a pipe."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from allmetal.cli.options import add_options, engine_options
from allmetal.cli.run import Timer
from allmetal.cli.sampling import add_sampling_options, sampling_from
from allmetal.config import EngineConfig
from allmetal.errors import RequestError
from allmetal.request import SamplingParams

if TYPE_CHECKING:
    from allmetal.engine.llm import LLM

MAX_TOKENS = 2048
HELP = "/reset starts over, /exit ends (so does Ctrl-D); Ctrl-C stops an answer"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a folder, a .gguf file, or a hub name")
    parser.add_argument("--system", metavar="TEXT", help="the system message")
    add_sampling_options(parser, max_tokens=MAX_TOKENS)
    add_options(parser, EngineConfig, skip=("model",))


def execute(args: argparse.Namespace) -> int:
    options = engine_options(args)
    from allmetal.engine.defaults import sampling_defaults
    from allmetal.engine.llm import LLM

    with LLM(**options) as llm:
        recommended = sampling_defaults(llm.generation_config)
        sampling = sampling_from(args, recommended, max_tokens=MAX_TOKENS)
        conversation = Conversation(llm, sampling, args.system)
        conversation.check()
        return _talk(conversation)


def _talk(conversation: Conversation) -> int:
    interactive = sys.stdin.isatty()
    if interactive:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (input() edits lines once it is there)
        print(HELP, file=sys.stderr)
    while True:
        try:
            line = input("> " if interactive else "").strip()
        except EOFError:
            return 0
        match line:
            case "":
                continue
            case "/exit" | "/quit":
                return 0
            case "/reset":
                conversation.reset()
            case _ if line.startswith("/"):
                print(HELP, file=sys.stderr)
            case _:
                conversation.say(line)


class Conversation:
    """Messages so far, and a model to continue them."""

    def __init__(self, llm: LLM, sampling: SamplingParams, system: str | None) -> None:
        self._llm = llm
        self._sampling = sampling
        self._system = [{"role": "system", "content": system}] if system else []
        self.messages: list[dict[str, str]] = []
        self.reset()

    def reset(self) -> None:
        self.messages = list(self._system)

    def check(self) -> None:
        """Raises RequestError if the model's template cannot take a conversation."""
        self._llm.chat_prompt([*self._system, {"role": "user", "content": "."}])

    def say(self, text: str) -> None:
        """Add a message and print the answer as it comes.  Ctrl-C keeps what there is of it."""
        self.messages.append({"role": "user", "content": text})
        timer = Timer()
        answer = ""
        try:
            stream = self._llm.stream(self._llm.chat_prompt(self.messages), self._sampling)
            with contextlib.closing(stream), _ctrl_c() as pressed:
                for output in stream:
                    timer.show(output)
                    answer = output.outputs[0].text
                    if pressed.is_set():
                        break
            timer.finish()
        except RequestError as error:
            self.messages.pop()
            print(f"error: {error.message}\nhint: /reset starts over", file=sys.stderr)
            return
        if pressed.is_set():
            print("[stopped]", file=sys.stderr)
        self.messages.append({"role": "assistant", "content": answer})


@contextlib.contextmanager
def _ctrl_c() -> Iterator[threading.Event]:
    """Set when Ctrl-C is pressed, so that the engine is left between two steps, not within one.

    Pressing it again interrupts at once.
    """
    pressed = threading.Event()

    def note(*_: object) -> None:
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()

    before = signal.signal(signal.SIGINT, note)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)
