"""How a token is picked from the scores, by the name that stands in a query's header."""

from __future__ import annotations

from lmql_lite.cache.head import MISS, Head, Miss
from lmql_lite.cache.scores import Mask, Scores
from lmql_lite.tokens import Sampling

DECODERS = ("argmax", "sample")


def pick(scores: Scores | Head, mask: Mask, sampling: Sampling, path_hash: int) -> int | Miss | None:
    """The next token, None where the mask allows nothing, a Miss where the head of an entry does not tell.

    A function of facts, mask, seed and path alone (law 1).
    """
    token = scores.best(mask) if sampling.temperature <= 0 else scores.draw(mask, sampling, path_hash)
    # the only allowed token may stand outside the head: then it is known, but not what the model thinks of it
    known = not isinstance(token, int) or scores.logprob(token) is not None
    return token if known else MISS
