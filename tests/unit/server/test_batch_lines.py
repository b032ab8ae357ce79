"""What a batch's output file says of the runs before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from allmetal.cli import main
from allmetal.errors import ConfigError
from allmetal.server.batch.lines import BadLine, Line, read_line, take_up

LINE = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}


def answered(number: int, custom_id: str | None, status: int = 200, error: object = None) -> str:
    response = None if error else {"status_code": status, "request_id": "r", "body": {}}
    fields = {"id": f"batch_req_{number}", "custom_id": custom_id}
    return json.dumps({**fields, "response": response, "error": error}) + "\n"


ALL = answered(1, "a") + answered(2, "b", 400) + answered(3, None, error={"code": "x"})


@pytest.mark.parametrize(
    ("retry", "kept", "ids", "numbers"),
    [(False, ALL, {"a", "b"}, {3}), (True, answered(1, "a"), {"a"}, set())],
)
def test_what_was_answered_is_not_asked_again(
    tmp_path: Path, retry: bool, kept: str, ids: set[str], numbers: set[int]
) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text(ALL + answered(4, "c")[:-9])  # a line that was broken off

    done = take_up(out, drop_failed=retry)

    assert (ids, numbers) == (done.custom_ids, done.numbers)
    assert kept == out.read_text()
    bad = BadLine(number=3, custom_id=None, reason="")
    line = read_line(9, json.dumps({**LINE, "custom_id": "a"}).encode())
    assert [not retry, True] == [bad in done, line in done]


def test_a_whole_line_without_its_end_is_asked_again(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text(answered(1, "a") + answered(2, "b").rstrip())

    assert {"a"} == take_up(out, drop_failed=False).custom_ids
    assert answered(1, "a") == out.read_text()


@pytest.mark.parametrize(
    "content", ["notes\n", "notes", '{"id": "x"}\n', answered(1, "a") + "[]\n"]
)
def test_somebody_elses_file_is_left_alone(tmp_path: Path, content: str) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text(content)

    with pytest.raises(ConfigError, match="is not an answer of a batch"):
        take_up(out, drop_failed=True)

    assert content == out.read_text()


def test_a_good_line_is_a_request() -> None:
    line = read_line(7, json.dumps(LINE).encode())

    assert Line(number=7, custom_id="a", url="/v1/completions", body={"prompt": "x"}) == line


@pytest.mark.parametrize(
    ("content", "out", "message"),
    [
        (None, None, "cannot read"),
        ("{}", None, "no request names a model"),
        (json.dumps(LINE), "notes\n", "is not an answer of a batch"),
    ],
)
def test_what_cannot_begin_says_why(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: str | None,
    out: str | None,
    message: str,
) -> None:
    source, sink = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    if content is not None:
        source.write_text(content)
    if out is not None:
        sink.write_text(out)

    assert 2 == main(["batch", str(source), str(sink)])
    assert message in capsys.readouterr().err
    assert out is None or out == sink.read_text()
