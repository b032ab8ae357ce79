"""How kernels cut their problems, for one generation.  No library is imported here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import lcm

from allmetal.platform.specs import AttentionSpec, MoESpec
from allmetal_tpu.pallas.chips import Chip

_LANES = 128
_ROOM = 4
_WORKING = 6
"""Tiles of 4-byte numbers that are alive at once where a block is computed on."""
ROW_TILE = {"float32": 8, "bfloat16": 16, "float16": 16, "float8_e4m3fn": 32, "float8_e5m2": 32}
"""Rows of a register by element size: 8 of 4 bytes, 16 of 2, 32 of 1."""


def round_up(n: int, step: int) -> int:
    return -(-n // step) * step


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """`queries` tokens an item at most, `rows` of them and their heads; `pages` copied at once.

    The cache is [blocks, parts, K, page, width].  A row of it is a whole number of lanes, since
    the compiler would copy the whole cache, in every step, to make it so.  Keys and values of up
    to 64 channels lie side by side in one part; longer ones are a part each, with zeros behind.
    """

    kv_heads: int
    group: int
    head_dim: int
    page: int
    scale: float
    window: int | None
    soft_cap: float | None
    sinks: bool
    queries: int
    rows: int
    row_tile: int
    pages: int
    cores: int
    item_bytes: int
    kv_bytes: int
    vmem_limit: int

    @property
    def vmem_bytes(self) -> int:
        """What a call takes next to the core: two of what is copied in and out, and what a block
        of keys needs while it is computed on."""
        keys, wide = self.pages * self.page, 4
        pages = 2 * keys * self.parts * self.kv_heads * self.width * self.kv_bytes
        rows = self.kv_heads * self.rows
        state = rows * (self.width + 2 * _LANES) * wide
        moved = 2 * rows * (2 * self.width * self.item_bytes + _LANES * wide)
        working = _WORKING * keys * (self.rows + self.width) * wide
        return pages + state + moved + working

    @property
    def parts(self) -> int:
        return cache_parts(self.head_dim)

    @property
    def width(self) -> int:
        return cache_width(self.head_dim)

    @property
    def value_lane(self) -> int:
        """Where a value begins in its row."""
        return self.head_dim if self.parts == 1 else 0


def cache_parts(head_dim: int) -> int:
    return 1 if 2 * head_dim <= _LANES else 2


def cache_width(head_dim: int) -> int:
    return round_up(head_dim, _LANES)


def attention_shape(
    spec: AttentionSpec, chip: Chip, *, num_tokens: int, num_seqs: int, single: bool
) -> AttentionShape:
    """`single`: every sequence has one new token, so an item is one token's heads.

    Else an item has as many tokens as fill the matrix unit's rows, since fewer rows take as long;
    but with many sequences most items have few tokens, and room is made for all that they may have;
    and the rows of all key-value heads must have room next to the core.
    """
    group = spec.num_heads // spec.num_kv_heads
    tile = ROW_TILE[spec.dtype]
    most = min(chip.attention_rows // group, _ROOM * num_tokens // num_seqs)
    queries = 1 if single else max(tile, most // tile * tile)
    row = cache_parts(spec.head_dim) * cache_width(spec.head_dim)
    token = row * spec.num_kv_heads * ITEM_BYTES[spec.kv_dtype]
    keys = min(chip.attention_keys, chip.attention_buffer // (2 * token))
    shape = AttentionShape(
        kv_heads=spec.num_kv_heads,
        group=group,
        head_dim=spec.head_dim,
        page=spec.block_size,
        scale=spec.scale,
        window=spec.window,
        soft_cap=spec.soft_cap,
        sinks=spec.sinks,
        queries=queries,
        rows=round_up(queries * group, tile),
        row_tile=tile,
        pages=max(1, keys // spec.block_size),
        cores=chip.cores,
        item_bytes=ITEM_BYTES[spec.dtype],
        kv_bytes=ITEM_BYTES[spec.kv_dtype],
        vmem_limit=chip.vmem_limit,
    )
    while shape.vmem_bytes > shape.vmem_limit and shape.queries > tile:
        fewer = max(tile, shape.queries // 2 // tile * tile)
        shape = replace(shape, queries=fewer, rows=round_up(fewer * group, tile))
    return shape


ITEM_BYTES = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulShape:
    """Tiles of m rows, k channels and n outputs; `packed` is the padded weight's shape.

    `group`: channels that share a scale, 0 for all.  `native`: the matrix unit multiplies numbers
    of `act_dtype` itself.
    """

    in_features: int
    out_features: int
    packed: tuple[int, int]
    group: int
    act_dtype: str | None
    native: bool
    m: int
    k: int
    n: int
    item_bytes: int
    weight_bytes: int
    vmem_limit: int

    @property
    def vmem_bytes(self) -> int:
        """What a call takes next to the core: two of what is copied in and out, the sums, and the
        widened tiles."""
        m, k, n, wide = self.m, self.k, self.n, 4
        scales = k // self.group if self.group else 1
        moved = 2 * (m * k * self.item_bytes + k * n * self.weight_bytes)
        moved += 2 * (m * n + round_up(scales, 8) * n) * wide
        return moved + 3 * m * n * wide + 2 * k * n * wide + m * k * wide

    @property
    def integer_sums(self) -> bool:
        return self.native and self.act_dtype == "int8" and not self.group


def matmul_shape(
    in_features: int,
    out_features: int,
    chip: Chip,
    *,
    num_rows: int,
    dtype: str,
    weight_dtype: str,
    group: int = 0,
    act_dtype: str | None = None,
) -> MatmulShape:
    """`num_rows`: of the activations that one matrix is multiplied with, more or less.

    Channels and outputs are cut into equal tiles, so that little is padded.
    """
    k, inner = _cut(in_features, chip.tile_k, lcm(group or 1, _LANES))
    n, columns = _cut(out_features, chip.tile_n, _LANES)
    rows = min(chip.tile_m, round_up(num_rows, _LEAST_ROWS))
    return MatmulShape(
        in_features=in_features,
        out_features=out_features,
        packed=(inner, columns),
        group=group,
        act_dtype=act_dtype,
        native=chip.int8 if act_dtype == "int8" else act_dtype is not None and chip.float8,
        m=rows,
        k=k,
        n=n,
        item_bytes=ITEM_BYTES[act_dtype or dtype],
        weight_bytes=ITEM_BYTES[weight_dtype],
        vmem_limit=chip.vmem_limit,
    )


_LEAST_ROWS = 32
"""A register of 8-bit numbers has this many rows."""


def _cut(size: int, most: int, step: int) -> tuple[int, int]:
    """(tile, padded size): the fewest tiles of at most `most`, each a multiple of `step`."""
    count = -(-size // most)
    tile = round_up(-(-size // count), step)
    return tile, tile * count


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsShape:
    """The two grouped products of routed experts."""

    gate_up: MatmulShape
    down: MatmulShape
    activation: str


def experts_shape(
    spec: MoESpec, chip: Chip, *, num_tokens: int, weight_dtypes: tuple[str, str]
) -> ExpertsShape:
    """`weight_dtypes`: of gate and up, and of down."""
    rows = max(1, num_tokens * spec.routing.top_k // spec.num_experts)

    def product(inner: int, outputs: int, weight_dtype: str) -> MatmulShape:
        return matmul_shape(
            inner, outputs, chip, num_rows=rows, dtype=spec.dtype, weight_dtype=weight_dtype
        )

    inner = spec.intermediate_size
    return ExpertsShape(
        gate_up=product(spec.hidden_size, 2 * inner, weight_dtypes[0]),
        down=product(inner, spec.hidden_size, weight_dtypes[1]),
        activation=spec.activation,
    )
