"""The paths of vectors and what is made of them; clients of other servers ask under several."""

from __future__ import annotations

from starlette.routing import BaseRoute, Route

from allmetal.server.pooling.embeddings import create_embeddings
from allmetal.server.pooling.scores import classify, rerank, score

_HANDLERS = {
    create_embeddings: ("/v1/embeddings",),
    score: ("/score", "/v1/score"),
    rerank: ("/rerank", "/v1/rerank", "/v2/rerank"),
    classify: ("/classify", "/v1/classify"),
}


def routes() -> list[BaseRoute]:
    return [
        Route(path, handler, methods=["POST"])
        for handler, paths in _HANDLERS.items()
        for path in paths
    ]
