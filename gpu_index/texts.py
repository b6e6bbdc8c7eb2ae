"""Texts as words: a count of bytes, then the bytes, padded to whole words."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def put_text(text: bytes, out: bytearray) -> int:
    """Appends a text; -> its offset in words."""
    at = len(out) >> 2
    out += len(text).to_bytes(4, "little")
    out += text
    out += bytes(-len(text) & 3)
    return at


def text_at(words: NDArray[np.uint32], at: int) -> bytes:
    """The text at words[at]."""
    count = int(words[at])
    return words[at + 1 : at + 1 + (count + 3) // 4].tobytes()[:count]
