"""Content hashes of token blocks.  Each includes its predecessor's, so that equal hashes mean
equal prefixes; the first includes a salt, so that tenants may be kept apart."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

HASH_BYTES = 16


def root_hash(salt: str) -> bytes:
    return blake2b(salt.encode(), digest_size=HASH_BYTES).digest()


def extend_hashes(
    hashes: list[bytes], root: bytes, token_ids: Sequence[int], block_size: int, num_tokens: int
) -> None:
    """Append the hashes of the full blocks of `token_ids[:num_tokens]` that are not there yet."""
    for start in range(len(hashes) * block_size, num_tokens - block_size + 1, block_size):
        block = array("q", token_ids[start : start + block_size]).tobytes()
        parent = hashes[-1] if hashes else root
        hashes.append(blake2b(parent + block, digest_size=HASH_BYTES).digest())
