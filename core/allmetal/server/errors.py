"""Errors as HTTP answers, in the OpenAI API's shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from allmetal.errors import AllmetalError, EngineDeadError, RequestError


class ModelNotFoundError(RequestError):
    """The request names a model that is not served here."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    type: str
    code: str | None = None


_OURS: tuple[tuple[type[AllmetalError], Answer], ...] = (
    (ModelNotFoundError, Answer(404, "invalid_request_error", "model_not_found")),
    (RequestError, Answer(400, "invalid_request_error")),
    (EngineDeadError, Answer(503, "service_unavailable", "engine_dead")),
)
_BUG = Answer(500, "internal_error")


def answer_for(error: Exception) -> Answer:
    return next((answer for kind, answer in _OURS if isinstance(error, kind)), _BUG)


def body_of(error: Exception) -> dict[str, Any]:
    """`{"error": {message, type, param, code, hint}}`."""
    answer = answer_for(error)
    # What went wrong inside is for the log, not for the client.
    known = isinstance(error, AllmetalError)
    message = error.message if isinstance(error, AllmetalError) else "internal error"
    return _body(answer, message, error.hint if known else None)  # type: ignore[attr-defined]


def _body(answer: Answer, message: str, hint: str | None = None) -> dict[str, Any]:
    error = {"message": message, "type": answer.type, "param": None, "code": answer.code}
    return {"error": {**error, "hint": hint} if hint else error}


async def on_error(_: Request, error: Exception) -> Response:
    return JSONResponse(body_of(error), status_code=answer_for(error).status)


async def on_http_error(_: Request, error: Exception) -> Response:
    """Unknown paths and methods."""
    assert isinstance(error, HTTPException)
    answer = Answer(error.status_code, "invalid_request_error")
    return JSONResponse(
        _body(answer, error.detail), status_code=error.status_code, headers=error.headers
    )
