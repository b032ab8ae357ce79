"""What was kept: retrieve, cancel, delete, list the input."""

from __future__ import annotations

import asyncio
import contextlib

from starlette.requests import Request
from starlette.responses import Response

from allmetal.errors import RequestError
from allmetal.server.openai.responses.create import WIRE
from allmetal.server.openai.responses.items import Json
from allmetal.server.openai.responses.store import Record
from allmetal.server.responses import JSON
from allmetal.server.sse import EventStream
from allmetal.server.state import state_of

_MOST_ITEMS = 100


def _record(request: Request) -> Record:
    return state_of(request).responses.get(request.path_params["id"])


async def retrieve(request: Request) -> Response:
    """With `stream=true`, the events of one that was begun in the background as a stream, after
    number `starting_after`."""
    record = _record(request)
    if request.query_params.get("stream", "").lower() not in ("true", "1"):
        return JSON(record.response)
    if not record.replays:
        raise RequestError(
            f"the events of response {record.id!r} were not kept",
            hint="create it with background: true and stream: true",
        )
    after = _number(request, "starting_after", default=-1, least=-1)
    return await EventStream.start(request.receive, record.follow(after), WIRE)


async def cancel(request: Request) -> Response:
    record = _record(request)
    if not record.response["background"]:
        raise RequestError(
            f"response {record.id!r} is not one in the background",
            hint="close its connection instead",
        )
    await _stopped(record)
    return JSON(record.response)


async def delete(request: Request) -> Response:
    record = _record(request)
    state_of(request).responses.remove(record.id)
    await _stopped(record)
    return JSON({"id": record.id, "object": "response", "deleted": True})


async def list_input_items(request: Request) -> Response:
    """Newest first, unless `order` is asc; `after` an item's id, `limit` of them."""
    items = _record(request).input_items
    order = request.query_params.get("order", "desc")
    if order not in ("asc", "desc"):
        raise RequestError(f"order must be asc or desc, not {order!r}")
    ordered = items if order == "asc" else items[::-1]
    limit = _number(request, "limit", default=20, least=1, most=_MOST_ITEMS)
    start = _after(request, ordered)
    page = ordered[start : start + limit]
    return JSON(
        {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": start + limit < len(ordered),
        }
    )


def _after(request: Request, items: list[Json]) -> int:
    name = request.query_params.get("after")
    if name is None:
        return 0
    found = [index for index, item in enumerate(items) if item["id"] == name]
    if not found:
        raise RequestError(f"after: there is no item {name!r} in this input")
    return found[0] + 1


def _number(
    request: Request, name: str, *, default: int, least: int, most: int | None = None
) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        raise RequestError(f"{name} must be a number, not {text!r:.60}") from None
    if value < least or (most is not None and value > most):
        raise RequestError(f"{name} must be at least {least}" + (f", at most {most}" * bool(most)))
    return value


async def _stopped(record: Record) -> None:
    if record.task is None or record.ended:
        return
    record.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await record.task
