"""A bounded cache from raw JSON bytes to what was parsed from them: ads of one campaign carry the same bytes.

Two generations instead of a list in order of use: what is found in the old one moves to the young one, and when the
young one has half the bytes it becomes the old one. A hit costs one look-up, and nothing is ever scanned.
"""

from __future__ import annotations

from typing import Generic, TypeVar

Parsed = TypeVar("Parsed")


class BytesCache(Generic[Parsed]):
    def __init__(self, key_bytes_max: int) -> None:
        """`key_bytes_max` bounds the bytes of all keys together; what is parsed is a few times as large."""
        self._half_bytes = max(1, key_bytes_max // 2)
        self._young: dict[bytes, Parsed] = {}
        self._old: dict[bytes, Parsed] = {}
        self._young_bytes = 0

    def get(self, key: bytes) -> Parsed | None:
        found = self._young.get(key)
        if found is None and self._old:
            found = self._old.pop(key, None)
            if found is not None:
                self.put(key, found)
        return found

    def put(self, key: bytes, parsed: Parsed) -> None:
        if len(key) > self._half_bytes:
            return  # alone it would push out everything else
        self._young[key] = parsed
        self._young_bytes += len(key)
        if self._young_bytes > self._half_bytes:
            self._old, self._young, self._young_bytes = self._young, {}, 0

    def __len__(self) -> int:
        return len(self._young) + len(self._old)
