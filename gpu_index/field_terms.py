"""The fields of ads as records, and filters as expressions over them."""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

from gpu_index.queries import numbers_of
from gpu_index.record import WORD, encode
from gpu_index.schema import Kind, Schema
from gpu_index.targeting import Expression
from gpu_index.values import Value, Values
from gpu_index.vocabulary import Key, Vocabulary

_TERMS_ALONE = frozenset({Kind.CATEGORY, Kind.BOOLEAN})
_TERMS = _TERMS_ALONE | {Kind.INTEGER, Kind.VERSION}


class FieldTerms:
    """The vocabulary of one index's ad fields. Owned by the writer."""

    def __init__(self, schema: Schema, terms_max: int) -> None:
        self.fields = schema.field_list
        self.vocabulary = Vocabulary(len(self.fields), terms_max)
        self._kinds = [field.kind for field in self.fields]

    def intern(self, field: int, value: Key | None) -> int:
        """The term of a value, 0 for None. Raises VocabularyFull."""
        return 0 if value is None else self.vocabulary.intern(field, value)

    def text(self, term: int) -> str | None:
        """The value of a category's term, None for term 0."""
        if term == 0:
            return None
        value = self.vocabulary.value(term)
        assert isinstance(value, str)
        return value

    def record(self, fields: Values) -> array[int]:
        """The record of an ad's fields (kernels/program.py); empty where there are none. Raises VocabularyFull."""
        if not fields:
            return array("I")
        words = [0]
        for field, values in fields.items():
            kind = self._kinds[field]
            terms: list[int] = []
            if kind in _TERMS:
                known = self.vocabulary.terms_of[field]
                terms = [known.get(value) or self.vocabulary.intern(field, value) for value in values]
            if kind in _TERMS_ALONE:
                words += (field, len(terms), 0, *terms)
                continue
            numbers = numbers_of(kind, values)
            words += (field, len(terms), len(numbers), *terms)
            for number in numbers:
                words += (number & WORD, (number >> 32) & WORD)
        words[0] = len(words)
        return array("I", words)

    def values(self, words: NDArray[np.uint32], at: int) -> Values:
        """The fields of the record at words[at]."""
        found: Values = {}
        p = at + 1
        while p < at + int(words[at]):
            field, n_terms, n_numbers = words[p : p + 3].tolist()
            if n_terms:
                found[field] = tuple(self._value(int(term)) for term in words[p + 3 : p + 3 + n_terms])
            else:
                found[field] = tuple(words[p + 3 : p + 3 + 2 * n_numbers].view(np.float64).tolist())
            p += 3 + n_terms + 2 * n_numbers
        return found

    def _value(self, term: int) -> Value:
        return self.vocabulary.value(term)

    def filter(self, expression: Expression) -> NDArray[np.uint32]:
        """A filter as words; values that no ad has are left out."""
        words: list[int] = []
        encode(expression, self.fields, self.vocabulary.terms_of, lambda _field, _value: 0, words)
        return np.array(words, np.uint32)
