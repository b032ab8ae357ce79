"""POST /score, /rerank and /classify, in the shapes of vLLM's, Jina's and Cohere's servers."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from allmetal.engine.vectors import check_classifies, classification
from allmetal.errors import RequestError
from allmetal.server.bodies import Body, Int, decode, takes
from allmetal.server.pooling.ask import compare, model_of, num_tokens, pool, texts_of
from allmetal.server.responses import JSON
from allmetal.server.state import state_of
from allmetal.text.pairs import TextPair


class ScoreRequest(Body, kw_only=True):
    """One text against many, or two lists of equal length, side by side."""

    model: str | None = None
    text_1: str | list[str]
    text_2: str | list[str]


class RerankRequest(Body, kw_only=True):
    model: str | None = None
    query: str
    documents: list[str | dict[str, str]]
    top_n: Int | None = None
    return_documents: bool | None = None


class ClassifyRequest(Body, kw_only=True):
    model: str | None = None
    input: str | list[str | Int | list[Int]]


@takes(ScoreRequest)
async def score(request: Request) -> Response:
    state = state_of(request)
    body = decode(await request.body(), ScoreRequest)
    state.check_model(body.model)
    scores, tokens = await compare(request, _pairs(body))
    data = [
        {"index": index, "object": "score", "score": value} for index, value in enumerate(scores)
    ]
    return JSON(
        {"object": "list", "model": state.model_name, "data": data, "usage": _usage(tokens)}
    )


@takes(RerankRequest)
async def rerank(request: Request) -> Response:
    state = state_of(request)
    body = decode(await request.body(), RerankRequest)
    state.check_model(body.model)
    documents = [_text_of(document) for document in body.documents]
    if body.top_n is not None and body.top_n < 1:
        raise RequestError(f"top_n must be at least 1, not {body.top_n}")
    scores, tokens = await compare(request, [(body.query, text) for text in documents])
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n]
    results: list[dict[str, Any]] = []
    for index in order:
        result: dict[str, Any] = {"index": index, "relevance_score": scores[index]}
        if body.return_documents is not False:
            result["document"] = {"text": documents[index]}
        results.append(result)
    return JSON({"model": state.model_name, "results": results, "usage": _usage(tokens)})


@takes(ClassifyRequest)
async def classify(request: Request) -> Response:
    state = state_of(request)
    body = decode(await request.body(), ClassifyRequest)
    state.check_model(body.model)
    model = model_of(state)
    check_classifies(model)
    outputs = await pool(request, texts_of(body.input))
    data = []
    for index, output in enumerate(outputs):
        found = classification(output, model.labels)
        shares = found.probabilities
        data.append(
            {"index": index, "label": found.label, "probs": shares, "num_classes": len(shares)}
        )
    usage = _usage(num_tokens(outputs))
    return JSON({"object": "list", "model": state.model_name, "data": data, "usage": usage})


def _pairs(body: ScoreRequest) -> list[TextPair]:
    first, second = (
        [given] if isinstance(given, str) else given for given in (body.text_1, body.text_2)
    )
    if not first or not second:
        raise RequestError("text_1 and text_2 must each have a text")
    if len(first) == 1:
        first = first * len(second)
    if len(first) != len(second):
        raise RequestError(
            f"text_1 has {len(first)} texts and text_2 {len(second)}",
            hint="give one text against many, or two lists of equal length",
        )
    return list(zip(first, second, strict=True))


def _text_of(document: str | dict[str, str]) -> str:
    if isinstance(document, str):
        return document
    if "text" not in document:
        raise RequestError("a document must be a text, or an object with a text")
    return document["text"]


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": tokens, "total_tokens": tokens}
