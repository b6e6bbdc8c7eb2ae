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

_TERMS = (Kind.CATEGORY, Kind.BOOLEAN, Kind.INTEGER, Kind.VERSION)


class FieldTerms:
    """The vocabulary of one index's ad fields. Owned by the writer."""

    def __init__(self, schema: Schema, terms_max: int) -> None:
        self.fields = schema.field_list
        self.vocabulary = Vocabulary(len(self.fields), terms_max)

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
        words = array("I", [0])
        for field, values in fields.items():
            kind = self.fields[field].kind
            terms = [self.intern(field, value) for value in values] if kind in _TERMS else []
            numbers = numbers_of(kind, values)
            words.extend((field, len(terms), len(numbers)))
            words.extend(terms)
            for number in numbers:
                words.extend((number & WORD, (number >> 32) & WORD))
        if len(words) == 1:
            return array("I")
        words[0] = len(words)
        return words

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
        words = array("I")
        encode(expression, self.fields, lambda field, value: self.vocabulary.terms_of[field].get(value, 0), words)
        return np.array(words, np.uint32)
