"""Errors as HTTP answers, in the shape of the API that the client speaks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from allmetal.errors import (
    AllmetalError,
    BusyError,
    DrainingError,
    EngineDeadError,
    RequestError,
    UnavailableError,
)
from allmetal.server import context
from allmetal.server.responses import JSON


class ModelNotFoundError(RequestError):
    """The request names a model that is not served here."""


class NotFoundError(RequestError):
    """The request names something that was kept here, and is not."""


class WrongKeyError(RequestError):
    """The request does not carry the server's API key."""


class BodyTooLargeError(RequestError):
    """The body is longer than the server takes."""


class TookTooLongError(RequestError):
    """The request did not end within the server's limit."""


class NotReadyError(AllmetalError):
    """The server is starting, coming back or going; another one may do."""


class AbortedError(AllmetalError):
    """Whoever runs the server ended the request."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    type: str
    code: str | None = None
    retry_after_s: int | None = None
    """When asking again may help; None: it will not."""


_OURS: tuple[tuple[type[AllmetalError], Answer], ...] = (
    (WrongKeyError, Answer(401, "authentication_error", "invalid_api_key")),
    (ModelNotFoundError, Answer(404, "invalid_request_error", "model_not_found")),
    (NotFoundError, Answer(404, "invalid_request_error", "not_found")),
    (BodyTooLargeError, Answer(413, "invalid_request_error", "body_too_large")),
    (TookTooLongError, Answer(504, "timeout", "request_timeout")),
    (BusyError, Answer(429, "rate_limit_error", "too_many_waiting", retry_after_s=1)),
    (DrainingError, Answer(503, "service_unavailable", "draining", retry_after_s=5)),
    (RequestError, Answer(400, "invalid_request_error")),
    (EngineDeadError, Answer(503, "service_unavailable", "engine_dead", retry_after_s=5)),
    (UnavailableError, Answer(501, "not_supported", "not_supported")),
    (AbortedError, Answer(503, "service_unavailable", "aborted")),
    (NotReadyError, Answer(503, "service_unavailable", "not_ready", retry_after_s=2)),
)
_ANTHROPIC = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    501: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Status -> that API's word for it."""
_BUG = Answer(500, "internal_error")


def answer_for(error: Exception) -> Answer:
    return next((answer for kind, answer in _OURS if isinstance(error, kind)), _BUG)


def body_of(error: Exception) -> dict[str, Any]:
    """`{"error": {message, type, param, code, hint, request_id}}`."""
    answer = answer_for(error)
    # What went wrong inside is for the log, not for the client.
    if not isinstance(error, AllmetalError):
        return _body(answer, "internal error")
    return _body(answer, error.message, error.hint)


def _body(answer: Answer, message: str, hint: str | None = None) -> dict[str, Any]:
    if context.anthropic.get():
        return _anthropic(answer, message, hint)
    error = {"message": message, "type": answer.type, "param": None, "code": answer.code}
    if hint:
        error["hint"] = hint
    if request_id := context.request_id.get():
        error["request_id"] = request_id
    return {"error": error}


def _anthropic(answer: Answer, message: str, hint: str | None) -> dict[str, Any]:
    """`{type: "error", error: {type, message, hint}, request_id}`."""
    kind = _ANTHROPIC.get(answer.status, "invalid_request_error")
    error = {"type": kind, "message": message, **({"hint": hint} if hint else {})}
    return {"type": "error", "error": error, "request_id": context.request_id.get()}


def response(error: Exception) -> JSON:
    """The whole answer, status and headers included."""
    answer = answer_for(error)
    headers = {} if answer.retry_after_s is None else {"retry-after": str(answer.retry_after_s)}
    return JSON(body_of(error), status_code=answer.status, headers=headers)


async def on_error(_: Request, error: Exception) -> Response:
    return response(error)


async def on_bug(_: Request, error: Exception) -> Response:
    """Answered outside of all middleware, so the request's name is not on it yet."""
    answer = response(error)
    answer.headers["x-request-id"] = context.request_id.get()
    return answer


async def on_http_error(_: Request, error: Exception) -> Response:
    """Unknown paths and methods."""
    assert isinstance(error, HTTPException)
    answer = Answer(error.status_code, "invalid_request_error")
    return JSON(_body(answer, error.detail), status_code=error.status_code, headers=error.headers)
