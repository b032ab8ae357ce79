"""One OpenAI-style server, asked by a client that is quick enough for a thousand streams."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from allmetal.bench.load.events import EventReader
from allmetal.bench.load.records import Call, Record
from allmetal.bench.load.settings import LoadSettings
from allmetal.errors import AllmetalError, ConfigError

try:
    import aiohttp
except ImportError as error:
    raise ConfigError(
        "asking servers needs the package aiohttp", hint='pip install "allmetal[bench]"'
    ) from error

_PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
_LONGEST_ERROR = 300


class ServerError(AllmetalError):
    """The server that is measured does not answer, or not as it should."""


class Client:
    """Used with `async with`.  One connection a request that is open, kept for the next."""

    def __init__(self, url: str, settings: LoadSettings) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self.model = settings.model or ""
        self._settings = settings
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Client:
        key = self._settings.api_key
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
            timeout=aiohttp.ClientTimeout(total=self._settings.timeout),
            headers={"Authorization": f"Bearer {key}"} if key else {},
            read_bufsize=1 << 18,
            trace_configs=[_noting_reuse()],
        )
        try:
            self.model = self.model or await self._first_model()
        except BaseException:
            await self._http.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._http is not None
        await self._http.close()

    async def get(self, path: str) -> Any:
        """The JSON at a path; None where there is none.  Raises ServerError if nobody answers."""
        assert self._http is not None
        try:
            async with self._http.get(self.url + path) as answer:
                body = await answer.read()
                return msgspec.json.decode(body) if answer.status == 200 else None
        except msgspec.DecodeError:
            return None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unreachable(error) from None

    async def count_prompt(self, prompt: str) -> int:
        """How many tokens the server takes a prompt for.  Raises ServerError."""
        record = Record(scheduled=time.perf_counter())
        await self.ask(Call(prompt=prompt, output_len=1), record)
        if record.error is not None:
            raise self.refuses(record.error)
        if not record.num_input:
            raise ServerError(
                f"{self.url} does not say how many tokens a prompt has",
                hint="--tokenizer, with the model's folder",
            )
        return record.num_input

    async def ask(self, call: Call, record: Record) -> None:
        """Make a request and note what comes; what fails is the record's `error`."""
        assert self._http is not None
        path = self.url + _PATHS[self._settings.endpoint]
        body = msgspec.json.encode(self._body(call))
        record.sent = time.perf_counter()
        try:
            while not await self._attempt(path, body, record):
                pass
        except asyncio.CancelledError:
            record.error = "interrupted"
            raise
        except TimeoutError:
            record.error = f"no end within {self._settings.timeout:g} s"
        except (aiohttp.ClientError, OSError, msgspec.DecodeError) as error:
            record.error = f"{type(error).__name__}: {error}"[:_LONGEST_ERROR]

    async def _attempt(self, path: str, body: bytes, record: Record) -> bool:
        """False where a kept connection turned out to be closed: the server had not heard of it."""
        assert self._http is not None
        record.reused = False
        try:
            async with self._http.post(
                path,
                data=body,
                headers={"Content-Type": "application/json"},
                trace_request_ctx=record,
            ) as answer:
                if answer.status != 200:
                    text = (await answer.text())[:_LONGEST_ERROR]
                    record.error = f"HTTP {answer.status}: {text}"
                else:
                    await _read(answer.content, record)
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
            if record.reused and not record.pieces:
                return False
            raise
        return True

    def _body(self, call: Call) -> Mapping[str, Any]:
        settings = self._settings
        if settings.endpoint == "chat":
            asked: dict[str, Any] = {"messages": [{"role": "user", "content": call.prompt}]}
        else:
            asked = {"prompt": call.prompt}
        if settings.ignore_eos:
            asked["ignore_eos"] = True
        return {
            "model": self.model,
            **asked,
            "max_tokens": call.output_len,
            "temperature": settings.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
            **settings.field,
        }

    async def _first_model(self) -> str:
        match await self.get("/v1/models"):
            case {"data": [{"id": str(name)}, *_]}:
                return name
        raise ServerError(
            f"{self.url}/v1/models lists no model", hint="--model NAME; --api-key if it wants one"
        )

    def _unreachable(self, error: Exception) -> ServerError:
        if isinstance(error, aiohttp.ClientConnectorError):
            error = error.os_error  # without its own opinion of addresses
        return ServerError(f"{self.url} does not answer: {error}", hint="allmetal serve MODEL")

    def refuses(self, message: str) -> ServerError:
        """What to raise where a request fails that should not."""
        hint = "--no-ignore-eos, if it does not know that" if self._settings.ignore_eos else None
        return ServerError(f"{self.url} refuses a request: {message}", hint=hint)


def _noting_reuse() -> aiohttp.TraceConfig:
    async def note(_: aiohttp.ClientSession, context: Any, __: Any) -> None:
        if isinstance(context.trace_request_ctx, Record):
            context.trace_request_ctx.reused = True

    config = aiohttp.TraceConfig()
    config.on_connection_reuseconn.append(note)
    return config


async def _read(stream: aiohttp.StreamReader, record: Record) -> None:
    reader, ended = EventReader(), False
    async for data in stream.iter_any():
        now = time.perf_counter()
        for event in reader.feed(data):
            if event.error is not None:
                record.error = f"in the stream: {event.error}"[:_LONGEST_ERROR]
                return
            if event.has_piece:
                record.pieces.append(now)
                ended = ended or event.choices[0].finish_reason is not None
            if event.usage is not None:
                record.num_input = event.usage.prompt_tokens
                record.num_output = event.usage.completion_tokens
    if not ended and not reader.done:
        record.error = "the stream broke off"
    elif not record.pieces:
        record.error = "the answer is empty"
    elif not record.num_output:
        record.num_output, record.counted = len(record.pieces), False
