"""What the Responses API keeps: bounded, and followed by any number of readers."""

from __future__ import annotations

import asyncio

import pytest

from allmetal.errors import RequestError
from allmetal.server.errors import NotFoundError
from allmetal.server.openai.responses.store import Record, ResponseStore


def record(name: str, *, ended: bool = True, num_bytes: int = 1, replays: bool = False) -> Record:
    made = Record(
        response={"id": name},
        input_items=[],
        history=[],
        num_bytes=num_bytes,
        replays=replays,
    )
    if ended:
        made.end()
    return made


def kept(store: ResponseStore, names: str) -> str:
    found = ""
    for name in names:
        try:
            found += store.get(name).id
        except NotFoundError:
            continue
    return found


def test_the_oldest_goes_first_but_never_one_that_is_being_written() -> None:
    store = ResponseStore(2)
    for name in "abcd":
        store.put(record(name, ended=name != "b"))

    assert "bd" == kept(store, "abcd")
    store.put(record("e", ended=False))
    store.put(record("f", ended=False))
    assert "bef" == kept(store, "abcdef")  # more than two, for none of them has ended


def test_large_ones_push_out_more_than_one() -> None:
    store = ResponseStore(10, most_bytes=100)
    for name in "abcd":
        store.put(record(name, num_bytes=30))
    assert "bcd" == kept(store, "abcd")
    store.put(record("e", num_bytes=75))
    assert "e" == kept(store, "abcde")
    store.remove("e")
    store.put(record("f", num_bytes=90))
    assert "f" == kept(store, "ef")


def test_a_store_without_room_says_so() -> None:
    with pytest.raises(RequestError, match="keeps no responses: it was started so"):
        ResponseStore(0, "it was started so").check()


@pytest.mark.parametrize("replays", [False, True])
def test_every_reader_sees_all_events_from_where_it_began(replays: bool) -> None:
    async def main() -> None:
        made = record("a", ended=False, replays=replays)

        async def read(after: int) -> list[int]:
            return [event["n"] async for event in made.follow(after)]

        early = [asyncio.create_task(read(after)) for after in (-1, 1)]
        for number in range(4):
            made.add([{"n": number}])
            await asyncio.sleep(0)
        late = asyncio.create_task(read(-1))
        await asyncio.sleep(0)
        made.end()

        assert [[0, 1, 2, 3], [2, 3]] == await asyncio.gather(*early)
        assert [0, 1, 2, 3] == await late
        assert ([0, 1, 2, 3] if replays else []) == await read(-1)

    asyncio.run(main())


def test_what_failed_before_it_began_is_raised() -> None:
    async def main() -> None:
        made = record("a", ended=False)
        made.error = RequestError("too long")
        made.end()
        with pytest.raises(RequestError, match="too long"):
            await anext(made.follow())

    asyncio.run(main())
