"""GGML blocks to values, in torch operations that give ggml's float32 results to the bit.

Source: dequantize_row_* in ggml-quants.c.  Legend: n blocks, each of `elements` values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from allmetal.quant.ggml import BLOCKS, row_columns

CHUNK = 1 << 18
"""Values decoded at once: intermediates stay in a core's cache."""


def dequantize(raw: torch.Tensor, ggml_type: str, dtype: torch.dtype) -> torch.Tensor:
    """raw [N, bytes] uint8, rows of blocks, to [N, C].

    Values are computed in float32 and rounded to `dtype` once.
    """
    rows = raw.shape[0]
    columns = row_columns(ggml_type, raw.shape[1])
    out = torch.empty(rows, columns, dtype=dtype, device=raw.device)
    if out.numel():
        dequantize_into(out.view(-1), raw, ggml_type)
    return out


def dequantize_into(out: torch.Tensor, raw: torch.Tensor, ggml_type: str) -> None:
    """As `dequantize`, into a contiguous `out` of as many values; chunk by chunk."""
    block, decode = BLOCKS[ggml_type], _DECODE[ggml_type]
    blocks = raw.reshape(-1, block.nbytes)
    values = out.view(-1, block.elements)
    step = max(1, CHUNK // block.elements)
    direct = out.dtype == torch.float32
    scratch = torch.empty(
        min(step, len(blocks)), block.elements, dtype=torch.float32, device=raw.device
    )
    for start in range(0, len(blocks), step):
        part = blocks[start : start + step]
        target = values[start : start + step]
        decode(part, target if direct else scratch[: len(part)])
        if not direct:
            target.copy_(scratch[: len(part)])


def _half(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """The float16 at byte `at` of each block, as float32 [n, 1]."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """uint8 [.., k] to its low and its high halves [.., 2, k]."""
    return torch.stack((packed & 15, packed >> 4), dim=-2)


def _bits(packed: torch.Tensor, width: int) -> torch.Tensor:
    """uint8 [.., k] to its 8 / width fields of `width` bits, lowest first: [.., 8 / width, k]."""
    mask = (1 << width) - 1
    return torch.stack([(packed >> shift) & mask for shift in range(0, 8, width)], dim=-2)


def _fifth_bits(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """The 32 bits at byte `at`, as 0 or 16 in uint8 [n, 2, 16]."""
    packed = blocks[:, at : at + 4]
    bits = torch.stack([(packed >> i) & 1 for i in range(8)], dim=-1)  # [n, 4 bytes, 8 bits]
    return bits.view(-1, 2, 16) << 4


def _q4_0(blocks: torch.Tensor, out: torch.Tensor) -> None:
    q = _nibbles(blocks[:, 2:]).view(-1, 32).to(torch.int8) - 8
    torch.mul(q, _half(blocks, 0), out=out)


def _q4_1(blocks: torch.Tensor, out: torch.Tensor) -> None:
    torch.mul(_nibbles(blocks[:, 4:]).view(-1, 32), _half(blocks, 0), out=out)
    out += _half(blocks, 2)


def _q5_0(blocks: torch.Tensor, out: torch.Tensor) -> None:
    q = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)
    torch.mul(q.view(-1, 32).to(torch.int8) - 16, _half(blocks, 0), out=out)


def _q5_1(blocks: torch.Tensor, out: torch.Tensor) -> None:
    q = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    torch.mul(q.view(-1, 32), _half(blocks, 0), out=out)
    out += _half(blocks, 2)


def _q8_0(blocks: torch.Tensor, out: torch.Tensor) -> None:
    torch.mul(blocks[:, 2:].view(torch.int8), _half(blocks, 0), out=out)


def _q2_k(blocks: torch.Tensor, out: torch.Tensor) -> None:
    scales, d, dmin = blocks[:, :16], _half(blocks, 80), _half(blocks, 82)
    q = _bits(blocks[:, 16:80].reshape(-1, 2, 32), 2).view(-1, 16, 16)
    values = out.view(-1, 16, 16)
    torch.mul(q, (d * (scales & 15)).unsqueeze(-1), out=values)
    values -= (dmin * (scales >> 4)).unsqueeze(-1)


def _q3_k(blocks: torch.Tensor, out: torch.Tensor) -> None:
    high = _bits(blocks[:, :32], 1).view(-1, 16, 16)  # a set bit means that 4 is not taken away
    low = _bits(blocks[:, 32:96].reshape(-1, 2, 32), 2).view(-1, 16, 16)
    four = _nibbles(blocks[:, 96:104]).view(-1, 16)
    two = _bits(blocks[:, 104:108], 2).view(-1, 16)
    scales = (four | (two << 4)).to(torch.int8) - 32
    q = low.to(torch.int8) - ((high ^ 1) << 2).to(torch.int8)
    torch.mul(q, (_half(blocks, 108) * scales).unsqueeze(-1), out=out.view(-1, 16, 16))


def _scales_and_mins(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The 6 bit scales and minimums of 8 groups, times their float16s: float32 [n, 8, 1] each.

    Bytes 4 to 15: four scales, four minimums, then the low halves of the other eight, whose upper
    two bits sit above the first eight.
    """
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat((first & 63, (third & 15) | ((first >> 2) & 48)), dim=1)
    mins = torch.cat((second & 63, (third >> 4) | ((second >> 2) & 48)), dim=1)
    return (
        (_half(blocks, 0) * scales).unsqueeze(-1),
        (_half(blocks, 2) * mins).unsqueeze(-1),
    )


def _q4_k(blocks: torch.Tensor, out: torch.Tensor) -> None:
    scales, mins = _scales_and_mins(blocks)
    values = out.view(-1, 8, 32)
    torch.mul(_nibbles(blocks[:, 16:].reshape(-1, 4, 32)).view(-1, 8, 32), scales, out=values)
    values -= mins


def _q5_k(blocks: torch.Tensor, out: torch.Tensor) -> None:
    scales, mins = _scales_and_mins(blocks)
    low = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).view(-1, 8, 32)
    values = out.view(-1, 8, 32)
    torch.mul(low | (_bits(blocks[:, 16:48], 1) << 4), scales, out=values)
    values -= mins


def _q6_k(blocks: torch.Tensor, out: torch.Tensor) -> None:
    scales = _half(blocks, 208) * blocks[:, 192:208].view(torch.int8)
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).view(-1, 8, 32)
    high = _bits(blocks[:, 128:192].reshape(-1, 2, 32), 2).view(-1, 8, 32)
    q = (low | (high << 4)).to(torch.int8) - 32
    torch.mul(q.view(-1, 16, 16), scales.unsqueeze(-1), out=out.view(-1, 16, 16))


_DECODE: Mapping[str, Callable[[torch.Tensor, torch.Tensor], None]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
