"""How a token is picked from the scores of a place."""

from __future__ import annotations

from lmql_lite.cache.head import MISS, Head, Miss
from lmql_lite.cache.penalties import NO_PENALTIES, Penalties
from lmql_lite.cache.scores import Mask, Scores
from lmql_lite.tokens import Sampling


def pick(
    scores: Scores | Head, mask: Mask, sampling: Sampling, path_hash: int, penalties: Penalties = NO_PENALTIES
) -> int | Miss | None:
    """The next token, None where the mask allows nothing, a Miss where the head of an entry does not tell.

    A function of facts, penalties, mask, seed and path alone (law 1).
    """
    if sampling.temperature <= 0:
        token = scores.best(mask, penalties)
    else:
        token = scores.draw(mask, sampling, path_hash, penalties)
    # the only allowed token may stand outside the head: then it is known, but not what the model thinks of it
    known = not isinstance(token, int) or scores.logprob(token) is not None
    return token if known else MISS
