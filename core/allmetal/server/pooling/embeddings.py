"""POST /v1/embeddings, in the shape of OpenAI's API."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from starlette.requests import Request
from starlette.responses import Response

from allmetal.engine.vectors import check_embeds, embedding
from allmetal.request import RequestOutput
from allmetal.server.bodies import Body, Int, decode, takes
from allmetal.server.pooling.ask import model_of, num_tokens, pool, texts_of
from allmetal.server.responses import JSON
from allmetal.server.state import state_of


class EmbeddingRequest(Body, kw_only=True):
    inert: ClassVar[frozenset[str]] = frozenset({"user"})
    # Cutting a vector short is right for a few models only, and none says so of itself.
    refused: ClassVar[Mapping[str, tuple[object, ...]]] = {"dimensions": ()}

    input: str | list[str | Int | list[Int]]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None


@takes(EmbeddingRequest)
async def create_embeddings(request: Request) -> Response:
    state = state_of(request)
    body = decode(await request.body(), EmbeddingRequest)
    state.check_model(body.model)
    check_embeds(model_of(state))
    outputs = await pool(request, texts_of(body.input))
    packed = body.encoding_format == "base64"
    data = [
        {"object": "embedding", "index": index, "embedding": _written(output, packed=packed)}
        for index, output in enumerate(outputs)
    ]
    total = num_tokens(outputs)
    usage = {"prompt_tokens": total, "total_tokens": total}
    return JSON({"object": "list", "data": data, "model": state.model_name, "usage": usage})


def _written(output: RequestOutput, *, packed: bool) -> Any:
    if packed:
        assert output.pooled is not None
        return base64.b64encode(output.pooled).decode()
    return embedding(output).vector
