"""IAB Content Category Taxonomy 1.0 (AdCOM's category taxonomy 1): a code of the first tier covers its sub-codes.

The taxonomy is finite and its sub-codes are numbered without a gap, so that it is told by their counts.
"""

from __future__ import annotations

from collections.abc import Iterable

IAB_CONTENT_1_0 = 1  # its number among AdCOM's category taxonomies, and OpenRTB's default `cattax`

# Sub-codes of IAB1 … IAB26: IAB1-1 … IAB1-7, IAB2-1 … IAB2-23, and so on; IAB24 has none.
_SUB_CODES = (7, 23, 12, 11, 15, 9, 45, 18, 31, 9, 5, 3, 12, 8, 10, 7, 44, 6, 36, 27, 3, 4, 10, 0, 7, 4)

COVERED_BY_FIRST_TIER = {
    f"IAB{first}": (f"IAB{first}", *(f"IAB{first}-{second}" for second in range(1, count + 1)))
    for first, count in enumerate(_SUB_CODES, start=1)
}


def covered(codes: Iterable[str], taxonomy: int) -> list[str]:
    """The codes and, in the taxonomy IAB_CONTENT_1_0, every code below one of them; each once, in order. Codes of
    another taxonomy, and codes that the taxonomy does not have, stand for themselves."""
    if taxonomy != IAB_CONTENT_1_0:
        return list(dict.fromkeys(codes))
    return list(dict.fromkeys(each for code in codes for each in COVERED_BY_FIRST_TIER.get(code, (code,))))
