from __future__ import annotations

from allmetal.cache.blocks import NULL_BLOCK, BlockPool


def test_the_null_block_is_never_given_away() -> None:
    pool = BlockPool(4)
    assert pool.num_free == 3
    assert NULL_BLOCK not in pool.take(3)


def test_a_shared_block_is_free_when_its_last_user_leaves() -> None:
    pool = BlockPool(3)
    [block] = pool.take(1)
    pool.share([block])
    pool.release([block])
    assert pool.num_free == 1
    pool.release([block])
    assert pool.num_free == 2
    assert pool.usage == 0


def test_content_is_found_until_its_block_is_taken_for_something_new() -> None:
    pool = BlockPool(3)
    first, second = pool.take(2)
    pool.name(first, b"one")
    pool.name(second, b"two")
    pool.release([first])
    pool.release([second])
    assert (pool.find(b"one"), pool.find(b"two")) == (first, second)
    pool.share([first])  # used again, so it is the younger one now
    pool.release([first])
    assert pool.take(1) == [second]
    assert (pool.find(b"one"), pool.find(b"two")) == (first, None)


def test_blocks_without_content_are_taken_before_those_with() -> None:
    pool = BlockPool(4)
    named, plain, other = pool.take(3)
    pool.name(named, b"content")
    pool.release([named, plain, other])
    assert set(pool.take(2)) == {plain, other}
    assert pool.find(b"content") == named


def test_the_first_block_of_a_content_is_the_one_found() -> None:
    pool = BlockPool(3)
    first, second = pool.take(2)
    pool.name(first, b"same")
    pool.name(second, b"same")
    assert pool.find(b"same") == first
    pool.release([second])
    assert pool.take(1) == [second]
    assert pool.find(b"same") == first


def test_forgotten_content_is_not_found_and_blocks_in_use_stay_in_use() -> None:
    pool = BlockPool(3)
    [block] = pool.take(1)
    pool.name(block, b"content")
    pool.forget_all()
    assert pool.find(b"content") is None
    assert pool.num_free == 1
    pool.release([block])
    assert pool.num_free == 2
