"""A server whose model says what is in a file, for what no random model says by itself.

    python scripted.py MODEL

Every answer is `MODEL/script.txt`, token by token, and the end of the sequence.  All above the
executor is real.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import tokenizers
from stand_ins import engine as stand_in

from allmetal.config import EngineConfig, ServerConfig
from allmetal.engine.async_engine import AsyncEngine
from allmetal.engine.engine import Engine
from allmetal.executor.contract import StepPlan
from allmetal.server.http import bound, listen, url_of
from allmetal.server.serving import Serving

EOS = 1  # of the tiny tokenizer


def engine(config: EngineConfig) -> Engine:
    folder = Path(config.model)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    script = tokenizer.encode((folder / "script.txt").read_text(), add_special_tokens=False).ids
    lengths: dict[int, int] = {}

    def token(step: StepPlan, row: int) -> int:
        lengths.update({start.slot: start.num_prompt_tokens for start in step.starts})
        rows = [index for index, samples in enumerate(step.samples) if samples]
        assert row in rows
        told = step.num_computed[row] + step.num_scheduled[row] - lengths[step.slots[row]]
        return script[told] if told < len(script) else EOS

    return stand_in(token)


async def main(model: str) -> None:
    config = ServerConfig(port=0, served_model_name="tiny")
    started = await AsyncEngine.start(EngineConfig(model=model), factory="scripted:engine")
    with bound(config) as listener:
        listen(listener)
        print(f"serving on {url_of(listener, config)}/v1", file=sys.stderr, flush=True)
        await Serving(started, config).run(listener)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
