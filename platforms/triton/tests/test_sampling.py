from __future__ import annotations

import pytest
import torch

from allmetal.platform import reference
from allmetal.platform.contract import Unsupported
from allmetal.platform.specs import SamplingSpec

pytest.importorskip("triton", reason="needs triton")
from allmetal_triton.ops.sampling import TritonSampling

ROWS = 16
FILTERS = {
    "none": (None, None, None),
    "top_k": ([1, 5, 50, 0], None, None),
    "large_top_k": ([0, 700, 1500, 100_000], None, None),
    "top_p": (None, [1.0, 0.1, 0.9, 0.99], None),
    "min_p": (None, None, [0.0, 0.02, 0.5, 1.0]),
    "all": ([0, 20, 2000, 5], [0.9, 0.5, 1.0, 0.95], [0.0, 0.1, 0.001, 0.0]),
}


def drawn(target, device, spec, *tensors) -> torch.Tensor:  # type: ignore[no-untyped-def]
    op = TritonSampling(target).build(spec)
    moved = [None if x is None else x.to(device) for x in tensors]
    tokens = op(*moved)
    assert tokens.dtype == torch.int64
    return tokens.cpu()


def filters(name: str, rows: int) -> list[torch.Tensor | None]:
    dtypes = (torch.int32, torch.float32, torch.float32)
    return [
        None if values is None else torch.tensor(values, dtype=dtype).repeat(rows // 4)
        for values, dtype in zip(FILTERS[name], dtypes, strict=True)
    ]


# The last two have more likely tokens than the short list holds, and none likely enough for it.
@pytest.mark.parametrize(
    ("vocab_size", "spread"), [(3, 1.0), (900, 10.0), (5000, 1.0), (9000, 3.0), (20_000, 0.1)]
)
@pytest.mark.parametrize("name", FILTERS)
def test_sampling_draws_the_reference_tokens(  # type: ignore[no-untyped-def]
    name, spread, vocab_size, generator, target, device
) -> None:
    spec = SamplingSpec(vocab_size=vocab_size)
    logits = torch.randn(ROWS, vocab_size, generator=generator) * spread
    logits[:, vocab_size // 2] = logits[:, 0]  # ties are kept together
    temperature = torch.tensor([0.0, 0.3, 1.0, 2.0]).repeat_interleave(ROWS // 4)
    uniform = torch.rand(ROWS, generator=generator)
    (exact,) = reference.kernels()["sampling"]
    given = (temperature, *filters(name, ROWS), uniform)
    expected = exact.build(spec)(logits, *given)

    actual = drawn(target, device, spec, logits, *given)

    # A draw that falls within rounding of a boundary may go either way.
    assert (actual != expected).sum() <= 1


def test_draws_are_spread_as_the_reference_spreads_them(generator, target, device) -> None:  # type: ignore[no-untyped-def]
    """One distribution, uniforms all over [0, 1): every token kept is drawn, in order."""
    spec = SamplingSpec(vocab_size=5000)
    rows = 48
    logits = (torch.randn(1, 5000, generator=generator) * 2).repeat(rows, 1)
    given = (
        torch.full((rows,), 0.8),
        torch.full((rows,), 40, dtype=torch.int32),
        torch.full((rows,), 0.95),
        None,
        torch.arange(rows) / rows,
    )
    (exact,) = reference.kernels()["sampling"]
    expected = exact.build(spec)(logits, *given)

    actual = drawn(target, device, spec, logits, *given)

    assert actual.tolist() == sorted(actual.tolist())
    assert (actual != expected).sum() <= 2


def test_tokens_that_are_ruled_out_are_never_drawn(generator, target, device) -> None:  # type: ignore[no-untyped-def]
    logits = torch.full((8, 6000), float("-inf"))
    allowed = torch.randperm(6000, generator=generator)[:5]
    logits[:, allowed] = torch.randn(5, generator=generator)
    uniform = torch.tensor([0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.999, 1 - 2**-24])
    for name in FILTERS:
        given = (torch.ones(8), *filters(name, 8), uniform)
        tokens = drawn(target, device, SamplingSpec(vocab_size=6000), logits, *given)
        assert set(tokens.tolist()) <= set(allowed.tolist()), name


@pytest.mark.parametrize("vocab_size", [1, 1000, 9000])
def test_without_temperature_the_first_largest_logit_wins(  # type: ignore[no-untyped-def]
    vocab_size, generator, target, device
) -> None:
    logits = torch.randn(5, vocab_size, generator=generator)
    logits[3] = 0.5
    spec = SamplingSpec(vocab_size=vocab_size)
    tokens = drawn(target, device, spec, logits, None, None, None, None, None)
    assert tokens.tolist() == logits.max(-1).indices.tolist()
    assert tokens[3] == 0


def test_a_row_does_not_depend_on_its_neighbours(generator, target, device) -> None:  # type: ignore[no-untyped-def]
    spec = SamplingSpec(vocab_size=6000)
    logits = torch.randn(8, 6000, generator=generator) * 3
    temperature, uniform = torch.ones(8), torch.rand(8, generator=generator)
    top_p = torch.tensor([0.9, 1.0] * 4)
    together = drawn(target, device, spec, logits, temperature, None, top_p, None, uniform)
    for i in range(8):
        one = slice(i, i + 1)
        row = (logits[one], temperature[one], None, top_p[one], None, uniform[one])
        assert drawn(target, device, spec, *row).tolist() == together[one].tolist()


def test_a_vocabulary_beyond_the_kernels_reach_is_refused(target) -> None:  # type: ignore[no-untyped-def]
    answer = TritonSampling(target).supports(SamplingSpec(vocab_size=1 << 30))
    assert isinstance(answer, Unsupported)
    assert "vocab_size must be at most" in answer.reason
