"""Text as tokens come: whole characters, nothing shown that a stop string would take back."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_tokenizers import as_tokenizer, byte_level, sentencepiece

from allmetal.text.detokenizer import Detokenizer
from allmetal.text.pieces import byte_alphabet
from allmetal.text.tokenizer import Tokenizer, TokenizerParts

EXAMPLES = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
ALPHABET = "ab cdeST.\n 你好世🙂🙃👨‍👩é"
texts = st.text(alphabet=ALPHABET, max_size=30) | st.text(max_size=20)


def utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def split(tokens: Sequence[int], cuts: Sequence[int]) -> list[list[int]]:
    """The tokens in portions; some may be empty."""
    ends = sorted(min(cut, len(tokens)) for cut in cuts)
    starts = [0, *ends]
    return [list(tokens[a:b]) for a, b in zip(starts, [*ends, len(tokens)], strict=True)]


cuts = st.lists(st.integers(0, 60), max_size=12)


@EXAMPLES
@given(text=texts.filter(utf8), cuts=cuts)
def test_any_split_of_a_texts_tokens_gives_the_text(
    tokenizer: Tokenizer, text: str, cuts: list[int]
) -> None:
    tokens = tokenizer.encode(text)
    detokenizer = Detokenizer(tokenizer, [])

    shown = "".join(detokenizer.push(part) for part in split(tokens, cuts))
    shown += detokenizer.finish()

    assert tokenizer.decode(tokens) == shown
    assert len(tokens) == detokenizer.num_tokens


@EXAMPLES
@given(data=st.data())
def test_any_split_of_any_tokens_gives_the_same_text(
    tokenizer: Tokenizer, data: st.DataObject
) -> None:
    """Models do not always write whole characters."""
    ids = st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=25)
    prompt, tokens = data.draw(ids), data.draw(ids)
    stops = data.draw(st.lists(st.text(alphabet=ALPHABET, min_size=1, max_size=3), max_size=3))

    def shown(parts: Sequence[Sequence[int]]) -> tuple[str, str | None, int]:
        detokenizer = Detokenizer(tokenizer, prompt, stop=stops)
        text = "".join(detokenizer.push(part) for part in parts) + detokenizer.finish()
        return text, detokenizer.stopped, detokenizer.num_tokens

    assert shown([tokens]) == shown(split(tokens, data.draw(cuts)))


@EXAMPLES
@given(text=texts.filter(utf8), prompt=texts.filter(utf8))
def test_every_piece_is_whole_characters(tokenizer: Tokenizer, text: str, prompt: str) -> None:
    whole = tokenizer.encode(prompt + text)
    start = len(tokenizer.encode(prompt))
    detokenizer = Detokenizer(tokenizer, whole[:start])

    pieces = [detokenizer.push([token]) for token in whole[start:]]

    if "\ufffd" not in prompt + text:
        assert not any("\ufffd" in piece for piece in pieces)


@EXAMPLES
@given(
    text=st.text(alphabet="abc ", max_size=40),
    stops=st.lists(st.text(alphabet="abc ", min_size=1, max_size=4), min_size=1, max_size=3),
    include=st.booleans(),
    cuts=cuts,
)
def test_text_ends_at_the_stop_string_that_is_complete_first(
    tokenizer: Tokenizer, text: str, stops: list[str], include: bool, cuts: list[int]
) -> None:
    tokens = tokenizer.encode(text)
    full = tokenizer.decode(tokens)
    ends = [(at + len(stop), at, stop) for stop in stops if (at := full.find(stop)) >= 0]

    detokenizer = Detokenizer(tokenizer, [], stop=stops, include_stop_str_in_output=include)
    shown = ""
    for part in split(tokens, cuts):
        shown += detokenizer.push(part)
        # What was shown is never taken back, whatever comes.
        assert full.startswith(shown)
        if not include and detokenizer.stopped is None:
            assert not any(full[: len(shown)].find(stop) >= 0 for stop in stops)
    shown += detokenizer.finish()

    if ends:
        end, start, stop = min(ends)
        assert stop == detokenizer.stopped
        assert full[: end if include else start] == shown
        # Tokens up to the one that completes it, and not one more.
        used = detokenizer.num_tokens
        assert (
            len(tokenizer.decode(tokens[:used])) >= end > len(tokenizer.decode(tokens[: used - 1]))
        )
    else:
        assert detokenizer.stopped is None
        assert full == shown


def spelled(tokenizer: Tokenizer, text: str) -> list[int]:
    """One token a character or byte, so that borders fall everywhere."""
    return [token for character in text for token in tokenizer.encode(character)]


def test_what_may_become_a_stop_string_is_held_back_and_then_let_go() -> None:
    tokenizer = plain_tokenizer("stopxy.")
    detokenizer = Detokenizer(tokenizer, [], stop=["stop"])

    shown = [detokenizer.push(spelled(tokenizer, c)) for c in "xstystop."]

    assert ["x", "", "", "sty", "", "", "", "", ""] == shown
    assert detokenizer.stopped == "stop"
    assert detokenizer.num_tokens == 8
    assert detokenizer.finish() == ""


def plain_tokenizer(alphabet: str) -> Tokenizer:
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE({c: i for i, c in enumerate(alphabet)}, [])
    )
    backend.decoder = tokenizers.decoders.ByteLevel()
    return Tokenizer(TokenizerParts(backend=backend))


def test_what_was_held_back_comes_with_the_end() -> None:
    tokenizer = plain_tokenizer("abc")
    detokenizer = Detokenizer(tokenizer, [], stop=["abca"])

    assert detokenizer.push(spelled(tokenizer, "abc")) == ""
    assert detokenizer.finish() == "abc"
    assert detokenizer.stopped is None


def test_no_stop_string_is_looked_for_within_the_first_tokens() -> None:
    tokenizer = plain_tokenizer("ab")
    detokenizer = Detokenizer(tokenizer, [], stop=["a"], min_tokens=3)

    assert detokenizer.push(spelled(tokenizer, "aaa")) == "aaa"
    assert detokenizer.push(spelled(tokenizer, "ba")) == "b"
    assert detokenizer.stopped == "a"


@pytest.mark.parametrize("skip", [True, False])
def test_special_tokens_are_shown_on_request(tokenizer: Tokenizer, skip: bool) -> None:
    tokens = [*tokenizer.encode("a"), *tokenizer.encode("<|im_end|>"), *tokenizer.encode("b")]
    detokenizer = Detokenizer(tokenizer, tokenizer.encode("x"), skip_special_tokens=skip)

    shown = detokenizer.push(tokens) + detokenizer.finish()

    assert ("<|im_end|>" in shown) is not skip


def test_a_character_that_the_prompt_began_is_finished() -> None:
    tokenizer = as_tokenizer(byte_level())
    tokens = [tokenizer.backend.token_to_id(spell(byte)) for byte in "🦊".encode()]
    detokenizer = Detokenizer(tokenizer, [*tokenizer.encode("a fox: "), *tokens[:2]])

    assert [detokenizer.push([token]) for token in tokens[2:]] == ["", "🦊"]


def spell(byte: int) -> str:
    return next(c for c, b in byte_alphabet().items() if b == byte)


def test_a_space_after_the_prompt_stays_where_decoding_alone_would_drop_it() -> None:
    tokenizer = as_tokenizer(sentencepiece(prefix=True))
    tokens = tokenizer.encode("The quick")
    quick = next(i for i, token in enumerate(tokens) if tokenizer.token(token).startswith("▁q"))

    detokenizer = Detokenizer(tokenizer, tokens[:quick])
    assert detokenizer.push(tokens[quick:]) + detokenizer.finish() == " quick"

    alone = Detokenizer(tokenizer, tokenizer.encode("<s>")[-1:])
    assert alone.push(tokens[quick:]) + alone.finish() == "quick"


def test_decoders_of_another_kind_are_decoded_in_windows() -> None:
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(
            {"un": 0, "##afford": 1, "##able": 2, "the": 3, ",": 4, "[UNK]": 5}
        )
    )
    backend.decoder = tokenizers.decoders.WordPiece()
    tokenizer = Tokenizer(TokenizerParts(backend=backend))
    assert tokenizer.pieces is None
    tokens = [3, 0, 1, 2, 4, 3]

    for parts in ([tokens], [[t] for t in tokens], [tokens[:2], tokens[2:]]):
        detokenizer = Detokenizer(tokenizer, [])
        shown = "".join(detokenizer.push(part) for part in parts) + detokenizer.finish()
        assert tokenizer.decode(tokens) == shown == "the unaffordable, the"
