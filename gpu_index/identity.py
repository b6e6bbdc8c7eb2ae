"""An ad's identity: the order of exact ties, which every replica shares."""

from __future__ import annotations

from hashlib import blake2b


def tie_key(ad_id: str) -> int:
    """64-bit BLAKE2b of the id. Exact ties are given in its ascending order, then by id: the same on every replica."""
    return int.from_bytes(blake2b(ad_id.encode(), digest_size=8).digest(), "little")
