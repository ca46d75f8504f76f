"""What a server told beside its text is kept with it: its number of a token, and what might have come instead (S1)."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lmql_lite.cache.tokens.bytes import ByteTree, CacheKey, PlainToken
from lmql_lite.cache.tokens.tree import TokenTree
from lmql_lite.options import Sampling

SCORES = st.floats(-50, -1, width=32)
DRAWN = CacheKey.of(b"", Sampling(temperature=1.0, seed=3))


@given(
    said=st.binary(min_size=1, max_size=9),
    token=st.none() | st.integers(0, 2**27 - 1),
    others=st.lists(st.tuples(st.binary(min_size=1, max_size=20), SCORES), max_size=6),
)
def test_what_was_told_beside_an_answer_is_read_as_it_was_told(
    said: bytes, token: int | None, others: list[tuple[bytes, float]]
) -> None:
    told = tuple(sorted(others, key=lambda one: -one[1]))
    for key in (CacheKey(), DRAWN):
        texts = ByteTree(TokenTree())
        node = texts.walk(texts.tree.root, b"Say:")
        texts.write(node, said, -0.5, key, 1, token, told)
        found = texts.read(node, (key,))
        assert found is not None and (found.data, found.logprob) == (said, -0.5)
        expected = (token, told) if token is not None or told or key == CacheKey() else (None, None)
        assert texts.details(node, found) == expected


def test_what_is_likelier_than_what_was_said_greedily_is_not_told_instead() -> None:
    """Such a server goes by other scores than it tells, and heads are best first."""
    texts = ByteTree(TokenTree())
    texts.write(texts.tree.root, b"a", -2.0, CacheKey(), 1, None, ((b"b", -1.0), (b"c", -3.0)))
    found = texts.read(texts.tree.root, (CacheKey(),))
    assert found is not None
    assert texts.details(texts.tree.root, found) == (None, ((b"c", float(np.float32(-3.0))),))


def test_what_was_told_beside_a_draw_is_not_known_any_more_by_whoever_did_not_hear_it() -> None:
    tree = TokenTree()
    ByteTree(tree).write(tree.root, b"a", -2.0, DRAWN, 1, 7, ((b"b", -1.0),))
    others = ByteTree(tree)
    found = others.read(tree.root, (DRAWN,))
    assert found is not None and found.data == b"a"
    assert others.details(tree.root, found) == (None, None)


WORDS = st.builds(PlainToken, st.binary(min_size=1, max_size=5), SCORES, st.integers(0, 99), st.just(()))


@given(st.lists(WORDS, min_size=1, max_size=9))
def test_tokens_that_arrive_together_are_known_as_if_they_had_come_one_by_one(words: list[PlainToken]) -> None:
    for key in (CacheKey(), DRAWN):
        together, apart = ByteTree(TokenTree()), ByteTree(TokenTree())
        way = together.append(together.tree.root, words, key, 1)
        here, there = together.tree.root, apart.tree.root
        for word in words:
            there = apart.write(there, *word[:2], key, 1, *word[2:])
        assert together.tree.path(way[-1]) == apart.tree.path(there)
        there, size = apart.tree.root, 0
        for word in words:
            said = together.read(here, (key,))
            other = apart.read(there, (key,))
            assert said is not None and other is not None
            assert said == other
            assert together.details(here, said) == apart.details(there, said)
            here, there, size = together.walk(here, said.data), apart.walk(there, said.data), size + len(word.data)
            assert here == way[size - 1]


def test_an_answer_that_arrives_at_once_is_known_to_its_end_however_little_room_there_is() -> None:
    words = [PlainToken(bytes([byte]), -1.0) for byte in b"abcdefgh"]
    for key in (CacheKey(), DRAWN):
        texts = ByteTree(TokenTree(max_bytes=4000))
        tip = texts.append(texts.tree.root, words, key, 1)[-1]
        assert told_by(texts, key) == b"abcdefgh"
        texts.tree.unpin(tip)  # nobody stands there any more
        assert told_by(texts, key) != b"abcdefgh"


def told_by(texts: ByteTree, key: CacheKey) -> bytes:
    node, said = texts.tree.root, b""
    while (found := texts.read(node, (key,))) is not None:
        node, said = texts.walk(node, found.data), said + found.data
    return said
