"""A text ends at its stop string, and the request behind it is aborted."""

from __future__ import annotations

import pytest
from small_tokenizers import as_tokenizer, byte_level

from allmetal.engine.output import OutputProcessor
from allmetal.request import RequestOutput, SamplingParams, TokenDelta


@pytest.fixture(scope="module")
def processor() -> OutputProcessor:
    return OutputProcessor(as_tokenizer(byte_level()))


def written(
    processor: OutputProcessor, text: str, **sampling: object
) -> tuple[RequestOutput, list[str]]:
    """The output after `text` came token by token, and what is to be aborted."""
    [request] = processor.open("r", "x", SamplingParams(max_tokens=99, **sampling))  # type: ignore[arg-type]
    stopped: list[str] = []
    outputs: list[RequestOutput] = []
    for token in processor.tokenizer.encode(text):
        taken = processor.take([TokenDelta(request_id=request.request_id, token_ids=[token])])
        stopped += taken.stopped
        outputs = taken.outputs or outputs
    processor.close("r")
    return outputs[0], stopped


def test_a_stop_string_ends_the_text_and_the_request(processor: OutputProcessor) -> None:
    output, stopped = written(processor, "one. two. three", stop=(" two",))

    [choice] = output.outputs
    assert choice.text == "one."
    assert (choice.finish_reason, choice.stop_reason) == ("stop", " two")
    assert output.finished
    assert stopped == ["r"]


def test_within_the_fewest_tokens_no_stop_string_counts(processor: OutputProcessor) -> None:
    first = len(processor.tokenizer.encode("one."))

    output, _ = written(processor, "one. two. three", stop=(".",), min_tokens=first)

    assert output.outputs[0].text == "one. two"
    assert output.outputs[0].stop_reason == "."
