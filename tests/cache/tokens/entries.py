"""Rows of entries that a test made up, and files whose entries it damages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from pathlib import Path

from lmql_lite.cache.tokens.inspect import read_file
from lmql_lite.cache.tokens.nodes import SCORES, Entry, Question
from lmql_lite.cache.tokens.rows import (
    ModelName,
    Stored,
    TreeRow,
    packed_entry,
    packed_question,
    packed_tokens,
    place_below,
    unpacked_scores,
)


def stored(model: ModelName, path: Sequence[int], entry: Entry, question: Question = SCORES) -> Stored:
    """The row of an entry, with its whole path."""
    row = TreeRow(reduce(place_below, path, 0), packed_question(question), 0, packed_tokens(path), packed_entry(entry))
    return model, 9, row


def damage(path: Path) -> None:
    """Flips a bit in the last entry of a file."""
    *_, row = read_file(path).rows[-1]
    data = bytearray(path.read_bytes())
    data[data.index(unpacked_scores(row.value, 0).top_k().logprobs.astype("<f4").tobytes())] ^= 1
    path.write_bytes(data)
