"""Tiles of attention that an architecture's registers hold, as data.

Chosen by compiling all of a grid and reading what the compiler says (`compile_only` of
allmetal-triton): of those that keep nothing in scratch memory the largest, since keys are read once
a tile.  None was timed, there was no device.  Where an architecture or a head size is not named,
the usual rule (`ops.attention_tiles` there) fits: CDNA 2 and 3 at all sizes, with 512 registers a
lane.
"""

from __future__ import annotations

from allmetal_triton.target import AttentionTile as Tile

FEW_ROWS = {
    # A wave has 32 lanes of 256 registers, and RDNA 3's matrix instruction wants each operand
    # twice, once in either half of the wave: rows of 128 channels take 64 registers before any key.
    # So eight waves where CDNA has four of twice the lanes, 32 keys instead of 64, and one tile on
    # its way instead of two.  512 channels do not fit whatever the tile: some 300 bytes a lane are
    # in scratch.
    "RDNA 3": (
        Tile(head_dim=128, m=32, n=32, num_warps=8, num_stages=2),
        Tile(head_dim=256, m=16, n=32, num_warps=8, num_stages=1),
        Tile(head_dim=512, m=16, n=16, num_warps=16, num_stages=1),
    ),
    # Each operand once: the same waves, and one more tile on its way.
    "RDNA 4": (
        Tile(head_dim=128, m=32, n=32, num_warps=8, num_stages=3),
        Tile(head_dim=256, m=16, n=32, num_warps=8, num_stages=2),
        Tile(head_dim=512, m=16, n=16, num_warps=8, num_stages=1),
    ),
}

MANY_ROWS = {
    "RDNA 3": (
        Tile(head_dim=128, m=64, n=16, num_warps=8, num_stages=1),
        Tile(head_dim=256, m=32, n=16, num_warps=16, num_stages=1),
        Tile(head_dim=512, m=16, n=16, num_warps=16, num_stages=1),
    ),
    "RDNA 4": (
        Tile(head_dim=128, m=64, n=32, num_warps=8, num_stages=2),
        Tile(head_dim=256, m=32, n=32, num_warps=8, num_stages=1),
        Tile(head_dim=512, m=16, n=16, num_warps=16, num_stages=1),
    ),
    # Local memory for three tiles of keys, which the registers on the way there are too few for.
    "CDNA 4": (
        Tile(head_dim=128, m=64, n=32, num_warps=4, num_stages=3),
        Tile(head_dim=256, m=64, n=32, num_warps=8, num_stages=2),
        Tile(head_dim=512, m=32, n=16, num_warps=8, num_stages=2),
    ),
}
FEW_ROWS["RDNA 3.5"], MANY_ROWS["RDNA 3.5"] = FEW_ROWS["RDNA 3"], MANY_ROWS["RDNA 3"]
