"""(attribute, value) to term id and back. Terms are counted by who uses them and given back when nobody does."""

from __future__ import annotations

from collections.abc import Iterable

from gpu_index.values import Value

Key = Value | int  # an int on a geo attribute is a cell


class VocabularyFull(Exception):
    """No more terms: the configured capacity is reached."""


class Vocabulary:
    """Terms 1.. of one namespace. Owned by the writer; term 0 is never given out."""

    def __init__(self, attributes: int, terms_max: int) -> None:
        self.terms_of: list[dict[Key, int]] = [{} for _ in range(attributes)]  # [attribute] value -> term
        self.terms_max = terms_max
        self.fresh: list[int] = []  # interned since `settle`: nobody may use them yet
        self._value: list[Key | None] = [None]  # [term]
        self._attribute: list[int] = [-1]  # [term], -1: free or a block's
        self._free: list[int] = []
        self._pins: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._value) - 1 - len(self._free)

    @property
    def highest(self) -> int:
        """One more than the highest term given out so far."""
        return len(self._value)

    def intern(self, attribute: int, value: Key) -> int:
        """The term of this value, a new one if need be. Raises VocabularyFull."""
        term = self.terms_of[attribute].get(value)
        if term is not None:
            return term
        if self._free:
            term = self._free.pop()
            self._value[term], self._attribute[term] = value, attribute
        else:
            term = len(self._value)
            if term >= self.terms_max:
                raise VocabularyFull
            self._value.append(value)
            self._attribute.append(attribute)
        self.terms_of[attribute][value] = term
        self.fresh.append(term)
        return term

    def block(self, count: int) -> int:
        """The first of `count` neighbouring terms that are never given back. Raises VocabularyFull."""
        first = len(self._value)
        if first + count > self.terms_max:
            raise VocabularyFull
        self._value.extend([None] * count)
        self._attribute.extend([-1] * count)
        return first

    def value(self, term: int) -> Key:
        value = self._value[term]
        assert value is not None, term
        return value

    def pin(self, terms: Iterable[int]) -> None:
        """Keeps terms while a cache holds them."""
        for term in terms:
            self._pins[term] = self._pins.get(term, 0) + 1

    def unpin(self, terms: Iterable[int]) -> list[int]:
        """The terms that no cache holds any more; the caller gives back those without references."""
        loose = []
        for term in terms:
            left = self._pins[term] - 1
            if left:
                self._pins[term] = left
            else:
                del self._pins[term]
                loose.append(term)
        return loose

    def release(self, term: int) -> None:
        """Gives back a term that nothing refers to, unless it is pinned or already free."""
        if term in self._pins or self._attribute[term] < 0:
            return
        value = self.value(term)
        del self.terms_of[self._attribute[term]][value]
        self._value[term], self._attribute[term] = None, -1
        self._free.append(term)

    def named(self, first: int, stop: int) -> tuple[list[int], list[Key | None]]:
        """Attributes and values of the terms first .. stop - 1; -1 and None for those that are free or a block's."""
        return self._attribute[first:stop], self._value[first:stop]

    def restore(self, attributes: list[int], values: list[Key | None], blocks: Iterable[tuple[int, int]]) -> None:
        """Makes this the vocabulary that `named` gave all terms of, from 0. `blocks`: first term and count of each."""
        assert len(attributes) == len(values) <= self.terms_max
        self._attribute, self._value = attributes, values
        free = {term for term, attribute in enumerate(attributes) if attribute < 0 and term > 0}
        for first, count in blocks:
            free.difference_update(range(first, first + count))
        self._free = sorted(free, reverse=True)
        for terms in self.terms_of:
            terms.clear()
        for term, attribute in enumerate(attributes):
            if attribute >= 0:
                self.terms_of[attribute][values[term]] = term  # type: ignore[index]
