"""One assistant turn while it is written: what each API translates into its own events.

The way is the same for all of them: a body becomes `Asked` and sampling, `turn.prepare` makes a
prompt and a parser of them, and `written` gives what comes of it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TypeAlias

from allmetal.parsing import Event, Message, ReasoningDelta
from allmetal.request import FinishReason, RequestOutput
from allmetal.server.state import ServerState
from allmetal.server.turn import Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """The engine has taken the request.  Tokens."""

    num_prompt: int
    num_cached: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The whole message, and why it ended.  `num_reasoning` of the `num_output` tokens were."""

    message: Message
    finish_reason: FinishReason
    stop_reason: int | str | None
    num_prompt: int
    num_cached: int
    num_output: int
    num_reasoning: int


Part: TypeAlias = Begun | Event | Ended


async def written(
    state: ServerState, turn: Turn, *, request_id: str, priority: int = 0, cache_salt: str = ""
) -> AsyncGenerator[Part, None]:
    """`Begun`, then events as they come, then `Ended`.  Closing this ends the request.

    Raises what `ServerState.generate` raises.
    """
    parser, message = turn.parser(), Message()
    seen = num_reasoning = 0
    begun = False
    outputs = state.generate(
        turn.prompt,
        turn.sampling,
        request_id=request_id,
        priority=priority,
        cache_salt=cache_salt,
    )
    try:
        async for output in outputs:
            if not begun:
                begun = True
                yield Begun(
                    num_prompt=len(output.prompt_token_ids), num_cached=output.num_cached_tokens
                )
            # Read once: the output grows while whoever takes an event writes to a client.
            choice, finished = output.outputs[0], output.finished
            text, num_tokens = choice.text[seen:], len(choice.token_ids)
            seen += len(text)
            for event in parser.parse(text, final=finished):
                message.add([event])
                if isinstance(event, ReasoningDelta):
                    num_reasoning = num_tokens
                yield event
            if finished:
                yield _ended(output, message, num_reasoning)
                return
    finally:
        await outputs.aclose()


def _ended(output: RequestOutput, message: Message, num_reasoning: int) -> Ended:
    choice = output.outputs[0]
    assert choice.finish_reason is not None
    return Ended(
        message=message,
        finish_reason=choice.finish_reason,
        stop_reason=choice.stop_reason,
        num_prompt=len(output.prompt_token_ids),
        num_cached=output.num_cached_tokens,
        num_output=len(choice.token_ids),
        num_reasoning=num_reasoning,
    )
