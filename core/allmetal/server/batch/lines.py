"""The lines of batch files.  Source: https://platform.openai.com/docs/guides/batch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from allmetal.errors import ConfigError, RequestError
from allmetal.server.batch.asgi import Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One request.  `key` is what its answer is known by: its custom id, else its number."""

    number: int
    custom_id: str
    url: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class BadLine:
    """A line that is no request, and why.  `custom_id` as far as it has one."""

    number: int
    custom_id: str | None
    reason: str


def read_line(number: int, raw: bytes) -> Line | BadLine:
    custom_id = None
    try:
        fields = msgspec.json.decode(raw)
        if not isinstance(fields, dict):
            raise RequestError("a line must be a JSON object")
        given = fields.get("custom_id")
        custom_id = given if isinstance(given, str) and given else None
        if custom_id is None:
            raise RequestError("custom_id must be a text")
        if fields.get("method") != "POST":
            raise RequestError(f"method must be POST, not {fields.get('method')!r}")
        url, body = fields.get("url"), fields.get("body")
        if not isinstance(url, str) or not url.startswith("/v1/"):
            raise RequestError(f"url must be a path such as /v1/chat/completions, not {url!r}")
        if not isinstance(body, dict):
            raise RequestError("body must be an object")
        if body.get("stream"):
            raise RequestError("a batch cannot stream: leave stream out of the body")
    except msgspec.DecodeError as error:
        return BadLine(number=number, custom_id=None, reason=f"the line is not JSON: {error}")
    except RecursionError:
        return BadLine(number=number, custom_id=None, reason="the line is nested too deeply")
    except RequestError as error:
        return BadLine(number=number, custom_id=custom_id, reason=error.message)
    return Line(number=number, custom_id=custom_id, url=url, body=body)


def numbered(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, counted from 1 as editors do."""
    for number, raw in enumerate(stream, 1):
        if raw.strip():
            yield number, raw


def answer(line: Line, reply: Reply) -> bytes:
    response = {
        "status_code": reply.status,
        "request_id": reply.request_id,
        "body": msgspec.Raw(reply.body),
    }
    return _line(line.number, line.custom_id, response=response)


def refusal(line: BadLine) -> bytes:
    error = {"code": "invalid_line", "message": line.reason}
    return _line(line.number, line.custom_id, error=error)


def _line(number: int, custom_id: str | None, *, response: Any = None, error: Any = None) -> bytes:
    fields = {
        "id": f"batch_req_{number}",
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }
    return msgspec.json.encode(fields) + b"\n"


class _Answered(msgspec.Struct):
    """As much of an answer's line as is needed to know it again."""

    id: str
    custom_id: str | None
    response: Any
    error: Any

    @property
    def failed(self) -> bool:
        return self.error is not None or self.response["status_code"] >= 400


@dataclass(slots=True)
class Done:
    """What an earlier run has answered: by custom id, and by number where there is none."""

    custom_ids: set[str]
    numbers: set[int]

    def __contains__(self, line: Line | BadLine) -> bool:
        if line.custom_id is not None:
            return line.custom_id in self.custom_ids
        return line.number in self.numbers

    def __len__(self) -> int:
        return len(self.custom_ids) + len(self.numbers)


def take_up(path: Path, *, drop_failed: bool) -> Done:
    """What `path` holds already.  A last line that was broken off is cut away; with `drop_failed`
    so is every answer that was an error.  Raises ConfigError for a file that is none of ours.
    """
    done, kept, dropped = Done(set(), set()), [], False
    if not path.exists():
        return done
    content = path.read_bytes()
    for number, raw in enumerate(content.splitlines(keepends=True), 1):
        try:
            found = msgspec.json.decode(raw, type=_Answered)
            number_of_line = int(found.id.removeprefix("batch_req_"))
            failed = found.failed
        except (msgspec.DecodeError, ValueError, TypeError, LookupError):
            if raw.endswith(b"\n") or number == 1:
                raise ConfigError(
                    f"{path} exists, and line {number} is not an answer of a batch",
                    hint="name another file, or give --overwrite",
                ) from None
            dropped = True
            continue
        if not raw.endswith(b"\n") or (drop_failed and failed):
            dropped = True
            continue
        kept.append(raw)
        if found.custom_id is not None:
            done.custom_ids.add(found.custom_id)
        else:
            done.numbers.add(number_of_line)
    if dropped:
        beside = path.with_name(f"{path.name}.part")
        beside.write_bytes(b"".join(kept))
        os.replace(beside, path)
    return done
