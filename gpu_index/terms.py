"""The terms of targetings: values of attributes, cells of radii, hours of the schedules' zones."""

from __future__ import annotations

import numpy as np

from gpu_index.schema import Attribute, Kind, Schema
from gpu_index.values import Value
from gpu_index.vocabulary import Key, Vocabulary
from gpu_index.zones import hour_of_week

DOMAIN_MAX = 256  # integers with a declared range of at most so many values have a term for each from the start
HOURS = 168


class TargetingTerms:
    """The vocabulary of one index's targetings. Owned by the writer."""

    def __init__(self, schema: Schema, terms_max: int) -> None:
        self.attributes = schema.attribute_list
        self.vocabulary = Vocabulary(len(self.attributes), terms_max)
        self.domain = np.zeros((len(self.attributes), 3), np.int64)  # kernels/targetings.py: first, least, most
        for attribute in self.attributes:
            bounds = _domain(attribute)
            if bounds is not None:
                least, most = bounds
                self.domain[attribute.index] = self.vocabulary.block(most - least + 1), least, most
        self._domains: list[tuple[int, int, int] | None] = [
            (int(first), int(least), int(most)) if first else None for first, least, most in self.domain
        ]
        self.zones: dict[str, int] = {}  # schedules' zones -> first of their 168 terms
        self._zone_of: dict[int, str] = {}
        self._hours: dict[int, list[int]] = {}

    def intern(self, attribute: int, value: Key) -> int:
        """The term of a value. Raises VocabularyFull."""
        return self._domain_term(attribute, value) or self.vocabulary.intern(attribute, value)

    def find(self, attribute: int, value: Key) -> int:
        """The term of a value, 0 if no targeting names it."""
        return self._domain_term(attribute, value) or self.vocabulary.terms_of[attribute].get(value, 0)

    def _domain_term(self, attribute: int, value: Key) -> int:
        domain = self._domains[attribute]
        if domain is None:
            return 0
        assert isinstance(value, int)
        first, least, most = domain
        return first + value - least if least <= value <= most else 0

    def value(self, attribute: int, term: int) -> Value:
        domain = self._domains[attribute]
        if domain is not None and domain[0] <= term <= domain[0] + domain[2] - domain[1]:
            number = term - domain[0] + domain[1]
            return bool(number) if self.attributes[attribute].kind is Kind.BOOLEAN else number
        return self.vocabulary.value(term)

    def zone(self, name: str) -> int:
        """The first of the 168 terms of a schedule's zone. Raises VocabularyFull."""
        first = self.zones.get(name)
        if first is None:
            first = self.zones[name] = self.vocabulary.block(HOURS)
            self._zone_of[first] = name
            self._hours.clear()
        return first

    def restore(self, attributes: list[int], values: list[Key | None], zones: dict[str, int]) -> None:
        """The terms of another index of this schema: what its vocabulary's `named` gave, and its `zones`."""
        blocks = [(first, most - least + 1) for first, least, most in filter(None, self._domains)]
        self.vocabulary.restore(attributes, values, [*blocks, *((first, HOURS) for first in zones.values())])
        self.zones = dict(zones)
        self._zone_of = {first: name for name, first in zones.items()}
        self._hours.clear()

    def zone_name(self, first: int) -> str:
        return self._zone_of[first]

    def schedule_terms(self, now_us: int) -> list[int]:
        """For each zone in use, the term of its hour at `now_us`."""
        second = now_us // 1_000_000
        terms = self._hours.get(second)
        if terms is None:
            if len(self._hours) > 64:
                self._hours.clear()
            terms = [first + hour_of_week(zone, now_us) for zone, first in self.zones.items()]
            self._hours[second] = terms
        return terms


def _domain(attribute: Attribute) -> tuple[int, int] | None:
    if attribute.kind is Kind.BOOLEAN:
        return 0, 1
    if attribute.kind is Kind.HOUR_OF_WEEK:
        return 0, HOURS - 1
    least, most = attribute.minimum, attribute.maximum
    if attribute.kind is Kind.INTEGER and least is not None and most is not None and most - least < DOMAIN_MAX:
        return least, most
    return None
