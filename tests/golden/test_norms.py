"""Families state their norm in ways that differ in the last bit: ours are equal to the bit."""

from __future__ import annotations

import pytest
import torch
from made_up import context
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm

from allmetal_models.layers.norm import Norm
from allmetal_models.layers.scope import Scope

DIM = 96
NORMS = {
    "llama": (LlamaRMSNorm, Norm(dim=DIM, eps=1e-5, cast_before_weight=True)),
    "olmo2": (Olmo2RMSNorm, Norm(dim=DIM, eps=1e-5)),
    "gemma3": (Gemma3RMSNorm, Norm(dim=DIM, eps=1e-5, offset=1.0)),
}


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_in_bfloat16_is_equal_to_the_bit(name: str) -> None:
    kind, norm = NORMS[name]
    generator = torch.Generator().manual_seed(5)
    x, stream = torch.randn(2, 300, DIM, generator=generator).mul_(3).to(torch.bfloat16)
    expected = kind(DIM, eps=1e-5).to(torch.bfloat16)
    with torch.no_grad():
        expected.weight.copy_(torch.randn(DIM, generator=generator))
    scope = Scope(context(dtype=torch.bfloat16))
    alone, added = norm.bind(scope, residual=False), norm.bind(scope, residual=True)
    with torch.inference_mode():
        assert torch.equal(alone(x, expected.weight)[0], expected(x))
        y, total = added(x, expected.weight, stream)
        assert torch.equal(total, x + stream)
        assert torch.equal(y, expected(x + stream))


def test_the_ways_differ_in_some_bits() -> None:
    """Else the test above says nothing of them."""
    x = torch.randn(300, DIM, generator=torch.Generator().manual_seed(6)).to(torch.bfloat16)
    weight = torch.randn(DIM, generator=torch.Generator().manual_seed(7)).to(torch.bfloat16)
    scope = Scope(context(dtype=torch.bfloat16))
    llama, olmo2 = (NORMS[name][1].bind(scope, residual=False) for name in ("llama", "olmo2"))
    assert not torch.equal(llama(x, weight)[0], olmo2(x, weight)[0])
