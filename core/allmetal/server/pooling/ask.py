"""Texts in, vectors out, all of a request's at once."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from functools import partial

from starlette.requests import Request

from allmetal.engine.output import tokenize
from allmetal.engine.vectors import embedding, judges_pairs, pooled, relevance, similarity
from allmetal.errors import RequestError
from allmetal.platform.contract import ModelFacts
from allmetal.request import PoolingParams, RequestOutput, SamplingParams
from allmetal.server.openai.choices import finished
from allmetal.server.sse import unless_disconnected
from allmetal.server.state import ServerState, state_of
from allmetal.text.pairs import Encoded, TextPair, encode_pair

Text = str | list[int]
_NOTHING_TO_SAMPLE = SamplingParams()


def model_of(state: ServerState) -> ModelFacts:
    return state.engine.plan.model


def texts_of(given: str | list[str | int | list[int]]) -> list[Text]:
    """One text, its token ids, or a list of either.  Raises RequestError for anything between."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise RequestError("there is no input")
    if all(isinstance(item, int) for item in given):
        return [[item for item in given if isinstance(item, int)]]
    texts = [item for item in given if not isinstance(item, int)]
    if len(texts) != len(given):
        raise RequestError("input holds token ids beside texts", hint="give one kind, in lists")
    return texts


async def pool(request: Request, texts: Sequence[Text | TextPair]) -> list[RequestOutput]:
    """A vector of each, in order.  Raises StepFailedError, RequestError."""
    state = state_of(request)
    state.check_sequences(len(texts), 1)
    encoded = await state.engine.in_thread(partial(_encode, state), texts)
    name = f"pool-{uuid.uuid4().hex}"
    streams = [
        state.generate(
            text.token_ids,
            _NOTHING_TO_SAMPLE,
            request_id=f"{name}-{index}",
            priority=0,
            cache_salt="",
            pooling=PoolingParams(second_at=text.second_at),
        )
        for index, text in enumerate(encoded)
    ]
    outputs = await unless_disconnected(request.receive, finished(streams))
    return [pooled(output) for output in outputs]


def _encode(state: ServerState, texts: Sequence[Text | TextPair]) -> list[Encoded]:
    tokenizer = state.engine.tokenizer
    return [
        encode_pair(tokenizer, text)
        if isinstance(text, tuple)
        else Encoded(tokenize(tokenizer, text))
        for text in texts
    ]


async def compare(request: Request, pairs: Sequence[TextPair]) -> tuple[list[float], int]:
    """(how well the second text of each pair answers the first, tokens it took)."""
    if judges_pairs(model_of(state_of(request))):
        outputs = await pool(request, pairs)
        return [relevance(output) for output in outputs], num_tokens(outputs)
    different = list(dict.fromkeys(text for pair in pairs for text in pair))
    outputs = await pool(request, different)
    vectors = {
        text: embedding(output).vector for text, output in zip(different, outputs, strict=True)
    }
    return [similarity(vectors[a], vectors[b]) for a, b in pairs], num_tokens(outputs)


def num_tokens(outputs: Sequence[RequestOutput]) -> int:
    return sum(len(output.prompt_token_ids) for output in outputs)
