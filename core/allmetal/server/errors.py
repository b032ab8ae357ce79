"""Errors as HTTP answers, in the OpenAI API's shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from allmetal.errors import AllmetalError, EngineDeadError, RequestError
from allmetal.server.responses import JSON


class ModelNotFoundError(RequestError):
    """The request names a model that is not served here."""


class WrongKeyError(RequestError):
    """The request does not carry the server's API key."""


class StepFailedError(AllmetalError):
    """The device failed while it computed a request; the engine serves on."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    type: str
    code: str | None = None


_OURS: tuple[tuple[type[AllmetalError], Answer], ...] = (
    (WrongKeyError, Answer(401, "authentication_error", "invalid_api_key")),
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
    if not isinstance(error, AllmetalError):
        return _body(answer, "internal error")
    return _body(answer, error.message, error.hint)


def _body(answer: Answer, message: str, hint: str | None = None) -> dict[str, Any]:
    error = {"message": message, "type": answer.type, "param": None, "code": answer.code}
    return {"error": {**error, "hint": hint} if hint else error}


async def on_error(_: Request, error: Exception) -> Response:
    return JSON(body_of(error), status_code=answer_for(error).status)


async def on_http_error(_: Request, error: Exception) -> Response:
    """Unknown paths and methods."""
    assert isinstance(error, HTTPException)
    answer = Answer(error.status_code, "invalid_request_error")
    return JSON(_body(answer, error.detail), status_code=error.status_code, headers=error.headers)
