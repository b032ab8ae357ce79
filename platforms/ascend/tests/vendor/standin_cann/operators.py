"""What each of the vendor's operators does, in plain torch, from its documentation.

They refuse what the documentation refuses: types, shapes, sizes of blocks, masks.  Sums are in
float32, as far as the documents say nothing else.

Legend: T tokens, B sequences, S queries of a sequence, H query heads, K key-value heads, D head
dim, E experts, k experts of a token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional

OPERATORS: dict[str, Callable[..., Any]] = {}
_HALF = (torch.float16, torch.bfloat16)
_FLOAT = (torch.float32, *_HALF)
_checking = True


@contextmanager
def without_checks(off: bool) -> Iterator[None]:
    """Attention takes float32 inside, where `off`."""
    global _checking
    before, _checking = _checking, not off
    try:
        yield
    finally:
        _checking = before


def operator(function: Callable[..., Any]) -> Callable[..., Any]:
    OPERATORS[function.__name__] = function
    return function


def require(condition: bool, what: str) -> None:
    if not condition:
        raise RuntimeError(f"the operator does not take that: {what}")


def _whole(*tensors: torch.Tensor) -> None:
    require(all(x.is_contiguous() for x in tensors), "tensors must be contiguous")


# ---- norms, activations, rotation ------------------------------------------------------------


def _normal(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> tuple[torch.Tensor, ...]:
    require(x.dtype in _FLOAT and weight.dtype == x.dtype, f"{x.dtype} with {weight.dtype}")
    _whole(x, weight)
    require(x.numel() > 0, "nothing")
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    return wide * scale, scale


@operator
def npu_rms_norm(x: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6) -> Any:
    normal, scale = _normal(x, gamma, epsilon)
    return (normal * gamma.float()).to(x.dtype), scale


@operator
def npu_gemma_rms_norm(x: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6) -> Any:
    normal, scale = _normal(x, gamma, epsilon)
    return (normal * (1 + gamma.float())).to(x.dtype), scale


@operator
def npu_add_rms_norm(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> Any:
    s = x1 + x2
    y, scale = npu_rms_norm(s, gamma, epsilon)
    return y, scale, s


@operator
def npu_swiglu(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    require(x.dtype in _FLOAT, str(x.dtype))
    a, b = x.float().chunk(2, dim)
    return (functional.silu(a) * b).to(x.dtype)


@operator
def npu_geglu(
    x: torch.Tensor, dim: int = -1, approximate: int = 1, activate_left: bool = False
) -> Any:
    require(x.dtype in _FLOAT, str(x.dtype))
    left, right = x.float().chunk(2, dim)
    gates, values = (left, right) if activate_left else (right, left)
    inner = functional.gelu(gates, approximate="tanh" if approximate else "none")
    return (inner * values).to(x.dtype), inner.to(x.dtype)


@operator
def npu_rotary_mul(
    x: torch.Tensor,
    r1: torch.Tensor,
    r2: torch.Tensor,
    rotary_mode: str = "half",
    rotate: torch.Tensor | None = None,
) -> torch.Tensor:
    require(x.dim() == r1.dim() == r2.dim() == 4, "four axes")
    require(x.dtype in _FLOAT and x.dtype == r1.dtype == r2.dtype, "one type of numbers")
    batch, length, heads, size = x.shape
    require(size < 896 and size % 2 == 0 and batch < 1000 and heads < 1000, "layout BSND")
    shapes = [(1, length, 1, size)]
    shapes += [(batch, length, 1, size), tuple(x.shape)] if rotary_mode == "half" else []
    require(tuple(r1.shape) in shapes and r1.shape == r2.shape, f"cosines {tuple(r1.shape)}")
    wide = x.float()
    if rotary_mode == "half":
        a, b = wide.chunk(2, -1)
        turned = torch.cat([-b, a], dim=-1)
    else:
        require(rotary_mode == "interleave", rotary_mode)
        turned = torch.stack([-wide[..., 1::2], wide[..., ::2]], dim=-1).flatten(-2)
    return (wide * r1.float() + turned * r2.float()).to(x.dtype)


# ---- cache and attention ---------------------------------------------------------------------


@operator
def npu_scatter_pa_kv_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    cache_mode: str | None = "PA_NZ",
    **rest: Any,
) -> None:
    require(not any(x is not None for x in rest.values()), "no compression")
    require(cache_mode in (None, "Norm"), "the caches are in the plain order")
    require(slot_mapping.dtype in (torch.int32, torch.int64), str(slot_mapping.dtype))
    _whole(key, value, key_cache, value_cache)
    require(len({x.dtype for x in (key, value, key_cache, value_cache)}) == 1, "one type")
    require(key.dim() == 3 and key_cache.dim() == 4, "three axes and four")
    for x, cache in ((key, key_cache), (value, value_cache)):
        require(x.shape[1:] == cache.shape[2:], f"{tuple(x.shape)} to {tuple(cache.shape)}")
        cache.view(-1, *x.shape[1:])[slot_mapping.long()] = x


def _sequence(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, hidden: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """q [S, H, D], k and v [n, K, D], hidden [S, n] -> [S, H, D] float32."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.float().repeat_interleave(group, 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.float(), k) * scale
    if hidden is not None:
        scores = scores.masked_fill(hidden, float("-inf"))
        unseen = hidden.all(0)  # what takes no part takes none, whatever is there
        v = v.masked_fill(unseen[:, None, None], 0.0)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


def _hidden(
    count: int, length: int, sparse_mode: int, mask: Any, before: int, after: int, row: int
) -> torch.Tensor | None:
    """Which of `length` keys each of `count` queries does not see."""
    if sparse_mode == 0:
        if mask is None:
            return None
        part = mask[row] if mask.dim() == 2 else mask[row, 0, 0]
        return part[None, :length].bool()
    require(sparse_mode in (3, 4), f"sparse_mode {sparse_mode}")
    at_query = torch.arange(length - count, length)[:, None]
    at_key = torch.arange(length)[None]
    if sparse_mode == 3:
        return at_key > at_query
    return (at_key > at_query + after) | (at_key < at_query - before)


def _check_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    block_table: torch.Tensor,
    mask: Any,
    sparse_mode: int,
    layout: str,
    block_size: int,
    heads: tuple[int, int],
    lengths: Sequence[int],
    longest_query: int,
) -> None:
    types = _HALF if _checking else _FLOAT
    require(query.dtype in types and query.dtype == key.dtype == value.dtype, str(query.dtype))
    _whole(query, key, value, block_table)
    num_heads, groups = heads
    size = key.shape[2] // groups
    require(key.shape == value.shape and key.shape[1] == block_size, "[blocks, block_size, H]")
    require(key.numel() < 2**31 and key.shape[2] <= 65_535, "a cache that is too large")
    require(num_heads % groups == 0 and num_heads // groups <= 64 and num_heads <= 256, "heads")
    require(size % 16 == 0 and size <= 512, f"heads of {size} channels")
    pages = 128 if longest_query > 1 or layout == "TND" else 16
    require(block_size % pages == 0 and 0 < block_size <= 512, f"blocks of {block_size}")
    if layout == "TND":
        require(size in (128, 192), f"heads of {size} channels in layout TND")
        require(tuple(query.shape[1:]) == (num_heads, size), str(tuple(query.shape)))
    else:
        require(layout == "BSH" and query.shape[2] == num_heads * size, str(tuple(query.shape)))
    require(block_table.dtype == torch.int32 and block_table.dim() == 2, "the table")
    require(block_table.shape[0] == len(lengths), "a row of the table for each sequence")
    most = max(-(-n // block_size) for n in lengths)
    require(block_table.shape[1] >= most, f"a table of {block_table.shape[1]} for {most} blocks")
    if sparse_mode in (3, 4):
        require(mask is not None and tuple(mask.shape) == (2048, 2048), "a mask of 2048 x 2048")
        require(bool((mask == torch.ones(2048, 2048).triu(1)).all()), "a triangle")
    elif mask is not None:
        require(mask.shape[-1] >= block_table.shape[1] * block_size, "a mask of all blocks")
        require(layout == "BSH" and query.shape[1] == 1, "a mask a sequence, for one query")
    require(mask is None or mask.dtype in (torch.bool, torch.int8, torch.uint8), "the mask's type")


@operator
def npu_fused_infer_attention_score(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    atten_mask: torch.Tensor | None = None,
    actual_seq_lengths: Sequence[int] | None = None,
    actual_seq_lengths_kv: Sequence[int] | None = None,
    block_table: torch.Tensor | None = None,
    num_heads: int = 1,
    scale: float = 1.0,
    pre_tokens: int = 2147483647,
    next_tokens: int = 2147483647,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    sparse_mode: int = 0,
    block_size: int = 0,
    workspace: torch.Tensor | None = None,
    out: Sequence[torch.Tensor] | None = None,
    **rest: Any,
) -> Any:
    require(not any(x is not None and not isinstance(x, int) for x in rest.values()), str(rest))
    require(block_table is not None and actual_seq_lengths_kv is not None, "a paged cache")
    assert block_table is not None
    assert actual_seq_lengths_kv is not None
    lengths = list(actual_seq_lengths_kv)
    groups = num_key_value_heads or num_heads
    if input_layout == "TND":
        assert actual_seq_lengths is not None
        ends = list(actual_seq_lengths)
        counts = [end - start for start, end in zip([0, *ends], ends, strict=False)]
        rows = query.split(counts)
    else:
        counts = [query.shape[1]] * query.shape[0]
        rows = tuple(x.unflatten(1, (num_heads, -1)) for x in query.unbind(0))
    _check_attention(
        query, key, value, block_table, atten_mask, sparse_mode, input_layout, block_size,
        (num_heads, groups), lengths, max(counts, default=0),
    )  # fmt: skip
    require(len(lengths) == len(counts), "a length for each sequence")
    one_each = input_layout == "BSH" and query.shape[1] == 1  # these are no use to one query
    mode = 0 if one_each else sparse_mode
    answers = []
    for row, (q, count, length) in enumerate(zip(rows, counts, lengths, strict=True)):
        require(0 < length and count <= length, f"{count} queries over {length} keys")
        blocks = block_table[row, : -(-length // block_size)].long()
        k, v = (x[blocks].flatten(0, 1)[:length].unflatten(1, (groups, -1)) for x in (key, value))
        hidden = _hidden(count, length, mode, atten_mask, pre_tokens, next_tokens, row)
        answers.append(_sequence(q, k, v, hidden, scale))
    joined = torch.cat(answers) if input_layout == "TND" else torch.stack(answers).flatten(2)
    made = joined.to(query.dtype)
    if out is not None:
        out[0].copy_(made)
        return out[0], out[1]
    return made, torch.zeros(0)


@operator
def _npu_fused_infer_attention_score_get_max_workspace(
    query: torch.Tensor, *rest: Any, **options: Any
) -> torch.Tensor:
    return torch.empty(1024, dtype=torch.uint8)


# ---- products --------------------------------------------------------------------------------


@operator
def npu_format_cast(x: torch.Tensor, acl_format: int, **rest: Any) -> torch.Tensor:
    """The order of elements is the device's affair: here they stay."""
    require(acl_format in (2, 29), f"format {acl_format}")
    return x.clone()


@operator
def npu_dynamic_quant(x: torch.Tensor, **rest: Any) -> Any:
    require(x.dtype in _HALF and x.dim() > 1, str(x.dtype))
    require(all(v is None or v in ("pertoken", 0.0) for v in rest.values()), str(rest))
    wide = x.float()
    scale = wide.abs().amax(-1) / 127
    return torch.round(wide / scale.clamp_min(1e-30)[..., None]).to(torch.int8), scale


@operator
def npu_quant_matmul(
    x1: torch.Tensor,
    x2: torch.Tensor,
    scale: torch.Tensor,
    *,
    pertoken_scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    output_dtype: int | None = None,
    **rest: Any,
) -> torch.Tensor:
    require(not any(x is not None for x in rest.values()), str(rest))
    require(x1.dtype == x2.dtype == torch.int8 and x1.numel() > 0, str(x1.dtype))
    require(max(x1.shape[-1], x2.shape[-1]) <= 65_535, "a side that is too long")
    dtype = _dtype(output_dtype)
    require(dtype in _HALF and pertoken_scale is not None, "16 bits with a scale a token")
    assert pertoken_scale is not None
    scales = (torch.float32, torch.bfloat16) if dtype == torch.bfloat16 else (torch.float32,)
    require(scale.dtype in scales and scale.dim() == 1, f"scale {scale.dtype} for {dtype}")
    require(pertoken_scale.dtype == torch.float32, str(pertoken_scale.dtype))
    y = (x1.double() @ x2.double()).float() * scale.float() * pertoken_scale[:, None]
    if bias is not None:
        require(bias.dtype in (dtype, torch.float32) and bias.dim() == 1, str(bias.dtype))
        y = y + bias.float()
    return y.to(dtype)


def _dtype(number: int | torch.dtype | None) -> torch.dtype:
    if isinstance(number, torch.dtype):
        return number
    names = {5: torch.float16, 15: torch.bfloat16, 1: torch.int8, None: torch.int8}
    return names[number]


@operator
def npu_weight_quant_batchmatmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    antiquant_scale: torch.Tensor,
    antiquant_offset: torch.Tensor | None = None,
    quant_scale: torch.Tensor | None = None,
    quant_offset: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    antiquant_group_size: int = 0,
    *rest: Any,
) -> torch.Tensor:
    require(x.dtype in _HALF and weight.dtype == torch.int8, f"{x.dtype} by {weight.dtype}")
    require(antiquant_scale.dtype == x.dtype, "scales of the type of x")
    require(x.dim() == weight.dim() == 2 and x.shape[1] == weight.shape[0], "[M, K] by [K, N]")
    size, scale = antiquant_group_size, antiquant_scale.float()
    if size:
        require(size % 32 == 0 and 32 <= size < weight.shape[0], f"groups of {size}")
        require(tuple(scale.shape) == (-(-weight.shape[0] // size), weight.shape[1]), "scales")
        scale = scale.repeat_interleave(size, 0)[: weight.shape[0]]
    return (x.float() @ (weight.float() * scale)).to(x.dtype)


# ---- experts ---------------------------------------------------------------------------------


@operator
def npu_moe_gating_top_k(
    x: torch.Tensor,
    k: int,
    *,
    bias: torch.Tensor | None = None,
    k_group: int = 1,
    group_count: int = 1,
    group_select_mode: int = 0,
    norm_type: int = 0,
    routed_scaling_factor: float = 1.0,
    eps: float = 1e-20,
    **rest: Any,
) -> Any:
    experts = x.shape[1]
    require(x.dim() == 2 and x.dtype in _FLOAT and experts <= 2048, "x")
    require(bias is None or bias.dtype == x.dtype, "a bias of the type of x")
    require(experts % group_count == 0 and experts // group_count > 2, "groups")
    require(1 <= k_group <= group_count and k <= k_group * experts // group_count, "k")
    wide = x.float()
    norm = wide.sigmoid() if norm_type else wide.softmax(-1)
    by = norm if bias is None else norm + bias.float()
    if group_count > 1:
        grouped = by.unflatten(-1, (group_count, -1))
        worth = grouped.topk(2).values.sum(-1) if group_select_mode else grouped.amax(-1)
        best = worth.topk(k_group).indices
        outside = torch.ones_like(worth, dtype=torch.bool).scatter(-1, best, False)
        by = grouped.masked_fill(outside[..., None], float("-inf")).flatten(-2)
    ids = by.topk(k).indices
    y = norm.gather(1, ids)
    if norm_type:
        y = y / (y.sum(-1, keepdim=True) + eps)
    return (y * routed_scaling_factor).to(x.dtype), ids.to(torch.int32), norm


@operator
def npu_moe_init_routing_v2(
    x: torch.Tensor,
    expert_idx: torch.Tensor,
    *,
    active_num: int = -1,
    expert_num: int = -1,
    drop_pad_mode: int = 0,
    expert_tokens_num_type: int = 0,
    expert_tokens_num_flag: bool = False,
    quant_mode: int = -1,
    active_expert_range: Sequence[int] = (),
    row_idx_type: int = 0,
    **rest: Any,
) -> Any:
    require(expert_idx.dtype == torch.int32 and expert_idx.dim() == 2, "expert ids")
    require(expert_tokens_num_flag and expert_tokens_num_type == 1, "counts are wanted")
    require(drop_pad_mode == 0 and row_idx_type == 0 and quant_mode in (-1, 1), "modes")
    require(list(active_expert_range) == [0, expert_num], "all experts")
    _whole(x, expert_idx)
    flat = expert_idx.flatten().long()
    order = flat.argsort(stable=True)  # row of the sorted -> place of the unsorted
    rows = x[order // expert_idx.shape[1]]
    places = torch.empty_like(order).scatter(0, order, torch.arange(len(order)))
    counts = flat.bincount(minlength=expert_num)
    if quant_mode == 1:
        rows, scale = npu_dynamic_quant(rows)
    else:
        scale = torch.zeros(len(order))
    return rows, places.to(torch.int32), counts, scale


@operator
def npu_grouped_matmul(
    x: Sequence[torch.Tensor],
    weight: Sequence[torch.Tensor],
    *,
    scale: Sequence[torch.Tensor] | None = None,
    per_token_scale: Sequence[torch.Tensor] | None = None,
    group_list: torch.Tensor | None = None,
    split_item: int = 0,
    group_type: int | None = None,
    group_list_type: int = 0,
    output_dtype: int | None = None,
    **rest: Any,
) -> Any:
    require(not any(v not in (None, 0) for v in rest.values()), str(rest))
    require(len(x) == len(weight) == 1 and split_item in (2, 3) and group_type == 0, "one of each")
    rows, experts = x[0], weight[0]
    require(rows.dim() == 2 and experts.dim() == 3 and rows.shape[1] == experts.shape[1], "shapes")
    require(group_list is not None and group_list.dtype == torch.int64, "counts")
    assert group_list is not None
    require(group_list_type == 1 and 1 < len(group_list) <= 1024, "counts of 2 to 1024 groups")
    require(int(group_list.sum()) == rows.shape[0] and len(group_list) == len(experts), "counts")
    require(rows.dtype == experts.dtype, f"{rows.dtype} by {experts.dtype}")
    dtype = rows.dtype if output_dtype is None else _dtype(output_dtype)
    parts = []
    for group, part in enumerate(rows.split(group_list.tolist())):
        y = (part.double() @ experts[group].double()).float()
        if rows.dtype == torch.int8:
            assert scale is not None
            y = y * scale[0][group].float()
        parts.append(y)
    y = torch.cat(parts)
    if rows.dtype == torch.int8:
        assert scale is not None
        require(per_token_scale is not None and per_token_scale[0].dtype == torch.float32, "scales")
        assert per_token_scale is not None
        fits = {torch.bfloat16: torch.bfloat16, torch.float16: torch.float32}
        require(scale[0].dtype == fits.get(dtype), f"scale {scale[0].dtype} for {dtype}")
        y = y * per_token_scale[0][:, None]
    return [y.to(dtype)]


@operator
def _npu_moe_token_unpermute(
    permuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    probs: torch.Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: Any = None,
) -> Any:
    """What `npu_moe_token_unpermute` is made of; its second answer is for training."""
    require(permuted_tokens.dtype == torch.bfloat16 and not padded_mode, "bfloat16")
    require(probs is not None and probs.dtype == torch.bfloat16, "shares in bfloat16")
    assert probs is not None
    mine = permuted_tokens.float()[sorted_indices.long()].view(*probs.shape, -1)
    summed = (mine * probs.float()[..., None]).sum(1).to(permuted_tokens.dtype)
    return summed, permuted_tokens


@operator
def npu_moe_token_unpermute(*inputs: Any, **options: Any) -> torch.Tensor:
    return _npu_moe_token_unpermute(*inputs, **options)[0]
