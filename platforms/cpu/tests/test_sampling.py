from __future__ import annotations

import pytest
import torch

from allmetal.platform import reference
from allmetal.platform.specs import SamplingSpec

ROWS = 24
FILTERS = {
    "none": (None, None, None),
    "top_k": ([1, 5, 50, 0], None, None),
    "large_top_k": ([0, 700, 1500, 100_000], None, None),
    "top_p": (None, [1.0, 0.1, 0.9, 0.99], None),
    "min_p": (None, None, [0.0, 0.02, 0.5, 1.0]),
    "all": ([0, 20, 2000, 5], [0.9, 0.5, 1.0, 0.95], [0.0, 0.1, 0.001, 0.0]),
}


@pytest.mark.parametrize("vocab_size", [3, 900, 5000])
@pytest.mark.parametrize("spread", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("name", FILTERS)
def test_sampling_draws_the_reference_tokens(  # type: ignore[no-untyped-def]
    name, spread, vocab_size, generator, accepting
) -> None:
    spec = SamplingSpec(vocab_size=vocab_size)
    logits = torch.randn(ROWS, vocab_size, generator=generator) * spread
    logits[:, vocab_size // 2] = logits[:, 0]  # ties are kept together
    temperature = torch.tensor([0.0, 0.3, 1.0, 2.0]).repeat_interleave(ROWS // 4)
    uniform = torch.rand(ROWS, generator=generator)
    dtypes = (torch.int32, torch.float32, torch.float32)
    filters = [
        None if values is None else torch.tensor(values, dtype=dtype).repeat(ROWS // 4)
        for values, dtype in zip(FILTERS[name], dtypes, strict=True)
    ]
    (exact,) = reference.kernels()["sampling"]
    expected = exact.build(spec)(logits, temperature, *filters, uniform)
    kernels = accepting(spec)
    assert kernels
    for kernel in kernels:
        print(kernel.name)
        given = logits.clone()
        actual = kernel.build(spec)(given, temperature, *filters, uniform)
        assert actual.dtype == torch.int64
        assert torch.equal(given, logits)
        # A draw that falls within rounding of a boundary may go either way.
        assert (actual != expected).sum() <= 1


def test_without_temperature_the_largest_logit_wins(generator, accepting) -> None:  # type: ignore[no-untyped-def]
    logits = torch.randn(5, 1000, generator=generator)
    for kernel in accepting(SamplingSpec(vocab_size=1000)):
        tokens = kernel.build(SamplingSpec(vocab_size=1000))(logits, None, None, None, None, None)
        assert tokens.tolist() == logits.argmax(-1).tolist()


def test_a_row_does_not_depend_on_its_neighbours(generator, accepting) -> None:  # type: ignore[no-untyped-def]
    spec = SamplingSpec(vocab_size=3000)
    logits = torch.randn(8, 3000, generator=generator) * 3
    temperature, uniform = torch.ones(8), torch.rand(8, generator=generator)
    top_p = torch.tensor([0.9, 1.0] * 4)
    for kernel in accepting(spec):
        op = kernel.build(spec)
        together = op(logits, temperature, None, top_p, None, uniform)
        alone = [
            op(logits[i : i + 1], temperature[:1], None, top_p[i : i + 1], None, uniform[i : i + 1])
            for i in range(8)
        ]
        assert together.tolist() == torch.cat(alone).tolist()
