"""Responses in the making and those kept for later, in memory and bounded."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, field

from allmetal.errors import RequestError
from allmetal.server.errors import NotFoundError
from allmetal.server.openai.responses.items import Json

MOST_BYTES = 256 << 20
"""Of all that is kept together, as it came in JSON."""


@dataclass(slots=True, kw_only=True, eq=False)
class Record:
    """One response, whoever waits for it.  `history` is every item before its output, `num_bytes`
    its size in JSON.

    `replays`: its events are kept after the end, for those who come later.
    """

    response: Json
    input_items: list[Json]
    history: list[Json]
    num_bytes: int = 0
    replays: bool = False
    error: Exception | None = None
    """Why it failed."""
    told: bool = False
    """Whether an event says so: not where it failed before anything came of it."""
    task: asyncio.Task[None] | None = None
    _events: list[Json] = field(default_factory=list)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _over: bool = False

    @property
    def id(self) -> str:
        name: str = self.response["id"]
        return name

    @property
    def ended(self) -> bool:
        return self._over

    def add(self, events: Iterable[Json]) -> None:
        self._events += events
        self._pulse()

    def end(self) -> None:
        self._over = True
        self._pulse()
        if not self.replays:  # those who follow have the old list
            self._events = []

    def _pulse(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def follow(self, after: int = -1) -> AsyncGenerator[Json, None]:
        """Events whose sequence number is greater, until the end.  Raises an `error` that none of
        them tells."""
        events, next_one = self._events, after + 1
        while True:
            while next_one < len(events):
                yield events[next_one]
                next_one += 1
            if self._over:
                if self.error is not None and not self.told:
                    raise self.error
                return
            await self._news.wait()

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()


class ResponseStore:
    """At most `limit` responses of at most `most_bytes`; the oldest that has ended goes first."""

    def __init__(self, limit: int, why_none: str = "", *, most_bytes: int = MOST_BYTES) -> None:
        self.limit = limit
        self._most_bytes = most_bytes
        self._num_bytes = 0
        self._why_none = why_none
        self._records: OrderedDict[str, Record] = OrderedDict()

    def __len__(self) -> int:
        return len(self._records)

    def check(self) -> None:
        """Raises RequestError if nothing is kept here."""
        if self.limit < 1:
            raise RequestError(
                f"this server keeps no responses: {self._why_none}",
                hint="store: false, and send the conversation along",
            )

    def put(self, record: Record) -> None:
        self._records[record.id] = record
        self._num_bytes += record.num_bytes
        for old in list(self._records.values()):
            if len(self._records) <= self.limit and self._num_bytes <= self._most_bytes:
                return
            if old.ended:
                self.remove(old.id)

    def get(self, response_id: str) -> Record:
        """Raises NotFoundError."""
        record = self._records.get(response_id)
        if record is None:
            kept = f"the last {self.limit} are kept, in memory" if self.limit else self._why_none
            raise NotFoundError(f"there is no response {response_id!r} here", hint=kept)
        return record

    def remove(self, response_id: str) -> None:
        if (record := self._records.pop(response_id, None)) is not None:
            self._num_bytes -= record.num_bytes
