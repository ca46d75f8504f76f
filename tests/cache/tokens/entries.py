"""Rows of entries that a test made up."""

from __future__ import annotations

from collections.abc import Iterator

from lmql_lite.cache.tokens.draws import mix
from lmql_lite.cache.tokens.inspect import ModelEntries, StoredPlace
from lmql_lite.cache.tokens.rows import Stored, TreeRow, packed_entry, packed_question, packed_tokens


def rows_of(known: ModelEntries) -> Iterator[Stored]:
    """The rows of entries, each with the way from the nearest place above that has one."""
    hashes: dict[StoredPlace, int] = {known.root: 0}
    for entry in known.entries:
        way: list[int] = []
        above = entry.place
        while above.parent is not None and (above is entry.place or not above.entries):
            way.append(above.token)
            above = above.parent
        places = []
        place: StoredPlace = entry.place
        while place not in hashes:
            places.append(place)
            assert place.parent is not None, "the root is known"
            place = place.parent
        for each in reversed(places):
            assert each.parent is not None, "the root is known"
            hashes[each] = mix(hashes[each.parent], each.token)
        question = packed_question(entry.question)
        value = entry.value
        data = packed_entry(value)
        row = TreeRow(hashes[entry.place], question, hashes[above], packed_tokens(way[::-1]), data)
        yield known.model, entry.written, row
