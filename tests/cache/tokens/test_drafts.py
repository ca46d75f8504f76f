"""Guesses: what stood elsewhere after the same tokens."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from lmql_lite.cache.tokens.drafts import LENGTH, SKIPPED
from lmql_lite.cache.tokens.nodes import Answer
from lmql_lite.cache.tokens.tree import TokenTree
from tests.cache.tokens.process import at
from tests.conftest import examples


def grown(*paths: Sequence[int]) -> TokenTree:
    """A tree of texts that runs had."""
    tree = TokenTree()
    for path in paths:
        tree.add_answer(at(tree, *path), bytes(16), Answer(1, 0.0, 1))
    return tree


def test_what_followed_the_same_tokens_is_guessed() -> None:
    tree = grown([1, 2, 3, 4, 5, 6])
    here = at(tree, 9, 9, 2, 3, 4)
    assert tree.draft(here, 8, skip=False) == (5, 6)
    assert tree.draft(here, 1, skip=False) == (5,)
    assert tree.draft(at(tree, 3, 4), 8, skip=False) == (), f"fewer than {LENGTH} tokens are the same"


def test_a_text_that_differs_in_one_place_goes_on_as_the_other_did() -> None:
    tree = grown([1, 2, 3, 4, 5, 6, 7, 8, 9])
    here = at(tree, 0, 2, 3, 4, 77)
    assert tree.draft(here, 8, skip=False) == ()
    assert tree.draft(here, 8, skip=True) == (6, 7, 8, 9)
    assert tree.draft(at(tree, 0, 2, 3, 4, 77, 78), 2, skip=True) == (7, 8)
    too_far = at(tree, 0, 2, 3, 4, *range(70, 71 + SKIPPED))
    assert tree.draft(too_far, 8, skip=True) == ()


@settings(max_examples=examples(40), deadline=None)
@given(
    paths=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=30), min_size=1, max_size=12),
)
def test_a_guess_is_a_way_that_stands_in_the_tree_after_these_tokens(paths: list[list[int]]) -> None:
    tree = grown(*paths)
    for path in paths:
        node = at(tree, *path)
        guess = tree.draft(node, 5, skip=False)
        texts = [tuple(other) for other in paths]
        if guess:
            wanted = (*path[-LENGTH:], *guess)
            assert any(wanted == text[start : start + len(wanted)] for text in texts for start in range(len(text)))


def test_whatever_stands_in_a_large_tree_is_mostly_found() -> None:
    paths = [[(7 * row + 13 * place * place) % 499 for place in range(40)] for row in range(500)]
    tree = grown(*paths)
    hits = sum(tree.draft(at(tree, 600 + row, *path[10:20]), 4, skip=False) != () for row, path in enumerate(paths))
    assert hits > 450
