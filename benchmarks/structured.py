"""What holding outputs to a schema costs: tokens a second with and without, in turn.

    python benchmarks/structured.py gemma.gguf --requests 16 --tokens 64

All requests have one schema, whose outputs cannot end before the tokens do.  Each kind is run
`--rounds` times, one after the other, and medians are compared.  "half" constrains every second
request: what the free ones lose is what they wait for masks.
"""

from __future__ import annotations

import argparse
import statistics
import time

from allmetal import LLM, SamplingParams, StructuredOutput

LONG = {"type": "string", "minLength": 1200}
KINDS = ("free", "half", "xgrammar", "llguidance")


def sampling(kind: str, index: int, tokens: int) -> SamplingParams:
    form = None
    if kind != "free" and (kind != "half" or index % 2):
        provider = "xgrammar" if kind == "half" else kind
        form = StructuredOutput(json=LONG, provider=provider)
    return SamplingParams(
        temperature=1.0, seed=index, max_tokens=tokens, ignore_eos=form is None, structured=form
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--platform", default="auto")
    args = parser.parse_args()
    rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with LLM(args.model, platform=args.platform, prefix_caching=False) as llm:
        prompts = [f"Number {index}: a list of words" for index in range(args.requests)]
        for round_ in range(args.rounds + 1):  # the first compiles and warms up
            for kind in KINDS:
                params = [sampling(kind, i, args.tokens) for i in range(args.requests)]
                begin = time.perf_counter()
                outputs = llm.generate(prompts, params)
                elapsed = time.perf_counter() - begin
                made = sum(len(output.outputs[0].token_ids) for output in outputs)
                assert made == args.requests * args.tokens, (kind, made)
                if round_:
                    rates[kind].append(made / elapsed)
    base = statistics.median(rates["free"])
    for kind in KINDS:
        rate = statistics.median(rates[kind])
        print(f"{kind:12} {rate:9.1f} tokens/s  {rate / base:5.2f} of free")


if __name__ == "__main__":
    main()
