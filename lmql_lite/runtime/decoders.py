"""How a token is picked from the scores, by the name that stands in a query's header."""

from __future__ import annotations

from lmql_lite.cache.tree import Fact, Node, TokenTree
from lmql_lite.constraints.masks import Mask
from lmql_lite.tokens import Sampling

DECODERS = ("argmax", "sample")


def pick(fact: Fact, mask: Mask, sampling: Sampling, tree: TokenTree, node: Node) -> int | None:
    """The next token, None where the mask allows nothing. A function of facts, mask, seed and path alone (law 1)."""
    if sampling.temperature <= 0:
        return fact.scores.best(mask)
    return fact.scores.draw(mask, sampling, tree.path_hash(node))
