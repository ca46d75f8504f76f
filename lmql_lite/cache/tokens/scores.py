"""Scores of one place in the tree, whole or their top k, and how a token is read from them: argmax and a repeatable
draw.

Scores are stored raw; penalties, mask, temperature and the rest are applied here, on reading (law 2). Nothing here
depends on other cached entries: equal scores, penalties, mask, sampling and path give the same token (law 1). An answer
from the top k is the one that the whole row would give, or it is `MISS` (S1, S2).
"""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmql_lite.cache.tokens.draws import (
    NO_PENALTIES,
    REST,
    Mask,
    Penalties,
    beginning,
    gumbel,
    is_greedy,
    log_sum_exp,
    survivors,
    typical,
)
from lmql_lite.options import Sampling

TOP_K_TOKENS = 32
"""Maximum number of tokens in a top-k entry: the best ones, until the rest has less than `TOP_K_REST` of the mass
(S1)."""
TOP_K_REST = 1e-3


class Miss(Enum):
    """Answer to a question that the top k cannot decide. Its own type distinguishes it from "no token allowed"."""

    MISS = "miss"


MISS: Final = Miss.MISS


class Drawn(NamedTuple):
    """A drawn token, and its lead over all others, in nats of a score."""

    token: int
    margin: float


@dataclass(frozen=True, slots=True, eq=False)
class TopK:
    """The best tokens of a row of scores, and a bound on the rest.

    `ids`: int32[k], best first, ties to the lowest id; every other token of the row comes after the last of them (the
    border). `logprobs`: float32[k], their raw log-probabilities. `rest`: float32, an upper bound of the total
    probability of all other tokens. `vocabulary`: the number of tokens in the row, which is the length of masks.

    A draw has two stages, top k and rest (S3), so it equals that of the whole row only if this is the row's top k.
    """

    ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    rest: float
    vocabulary: int

    def logprob(self, token: int) -> float | None:
        """The raw log-probability of a token; None if it is outside the top k."""
        (places,) = np.nonzero(self.ids == token)
        return float(self.logprobs[places[0]]) if places.size else None

    def best(self, mask: Mask, penalties: Penalties = NO_PENALTIES) -> int | Miss | None:
        """The allowed token with the highest score, ties to the lowest id (S2). None if no token is allowed.

        MISS if another token might have as high a score.
        """
        allowed = mask[self.ids]
        if not penalties.ids.size:
            first = int(allowed.argmax())
            return int(self.ids[first]) if allowed[first] else _outside_top_k(mask)
        if not allowed.any():
            return _outside_top_k(mask)
        known, scores = best_first(self.ids[allowed], self.logprobs[allowed], penalties)
        unknown = self._unknown(mask, known.size, penalties)
        return int(known[0]) if not unknown.count or scores[0] > unknown.highest else MISS

    def sample(
        self, mask: Mask, sampling: Sampling, path_hash: int, penalties: Penalties = NO_PENALTIES
    ) -> int | Miss | None:
        """The token of `Scores.sample`. None if no token is allowed.

        MISS if the rest might win, or if the winner might not survive truncation.
        """
        if is_greedy(sampling):
            return self.best(mask, penalties)
        drawn = self._drawn(mask, sampling, path_hash, penalties)
        return drawn.token if isinstance(drawn, Drawn) else drawn

    def is_close(self, epsilon: float, mask: Mask, sampling: Sampling, path_hash: int, penalties: Penalties) -> bool:
        """True if scores that differ by `epsilon` might choose another token (S5)."""
        if is_greedy(sampling):
            return self._lead(mask, penalties) < epsilon
        drawn = self._drawn(mask, sampling, path_hash, penalties)
        return drawn is MISS or (isinstance(drawn, Drawn) and drawn.margin < epsilon)

    def _lead(self, mask: Mask, penalties: Penalties) -> float:
        """Lower bound of the lead of the best allowed token over all others, in nats."""
        allowed = mask[self.ids]
        if not allowed.any():
            return 0.0 if _outside_top_k(mask) is MISS else math.inf
        known, scores = best_first(self.ids[allowed], self.logprobs[allowed], penalties)
        unknown = self._unknown(mask, known.size, penalties)
        others = [float(scores[1])] if known.size > 1 else []
        if unknown.count:
            mass = math.log(self.rest) if self.rest > 0 else -math.inf
            others.append(float(unknown.highest) if penalties else min(float(unknown.highest), mass))
        return float(scores[0]) - max(others, default=-math.inf)

    def _drawn(self, mask: Mask, sampling: Sampling, path_hash: int, penalties: Penalties) -> Drawn | Miss | None:
        """The draw of `sample` for a policy that is not greedy."""
        allowed = mask[self.ids]
        if not allowed.any():
            only = _outside_top_k(mask)
            return Drawn(only, math.inf) if isinstance(only, int) else only
        known, scores = best_first(self.ids[allowed], self.logprobs[allowed], penalties)
        heat = scores / np.float32(sampling.temperature)
        if np.isneginf(heat[0]):
            return Drawn(int(known[0]), 0.0)  # all allowed tokens have probability 0
        certain, possible, rest = self._truncate(heat, self._unknown(mask, known.size, penalties), sampling)
        if sampling.typical_p < 1:
            if certain != possible or rest > -math.inf:  # the entropy depends on all survivors
                return MISS
            kept = typical(heat[:certain].astype(np.float64) - float(heat[0]), sampling.typical_p)
            known, heat = known[kept], heat[kept]
            certain = possible = heat.size
        noise = gumbel(sampling, path_hash, np.append(known, REST))
        noisy = heat[:possible] + noise[:possible]
        winner = int(noisy.argmax())
        # float32, as for the whole row: adding and comparing keep the order, so the bound remains valid
        first, second = noisy[winner], np.float32(rest) + noise[-1]
        if winner >= certain or second > first:
            return MISS
        noisy[winner] = -np.inf
        return Drawn(int(known[winner]), float(first - max(second, noisy.max())) * sampling.temperature)

    def _unknown(self, mask: Mask, known: int, penalties: Penalties) -> Unknown:
        """Bounds of the allowed tokens outside the top k; `known` is the number of those in it."""
        count = int(np.count_nonzero(mask)) - known
        ceiling = self.logprobs[-1]
        if not penalties or not count:
            return Unknown(count, ceiling, np.zeros(0, np.float32), is_behind=True)
        if self.rest > 0:  # the rest of a top k with nearly all the mass is less likely than its last token
            ceiling = min(ceiling, np.float32(_a_little_above(math.log(self.rest))))
        met = penalties.without(self.ids).among(mask)
        penalised = met.scores(met.ids, np.full(met.ids.size, ceiling)) if met else met.losses
        return Unknown(count, max(ceiling, penalised.max(initial=ceiling)), penalised, is_behind=False)

    def _truncate(self, heat: NDArray[np.float32], unknown: Unknown, sampling: Sampling) -> tuple[int, int, float]:
        """Numbers of the allowed tokens of the top k that certainly and possibly survive truncation, and an upper bound
        of the logarithm of the tempered sum of the surviving rest."""
        highest = unknown.highest / np.float32(sampling.temperature)
        # the number of tokens that come before every unknown one
        size, first = heat.size, heat.size if unknown.is_behind else int(np.count_nonzero(heat > highest))
        outside = unknown.count
        if sampling.top_k is not None:
            outside = min(outside, max(max(sampling.top_k, 1) - first, 0))
        rest = self._rest_bound(outside, sampling.temperature)
        if outside and unknown.penalised.size and not np.isneginf(highest):
            penalised = (unknown.penalised / np.float32(sampling.temperature)).astype(np.float64)
            rest = _a_little_above(float(np.logaddexp.reduce(np.append(penalised, rest))))
        if not sampling.truncates:
            return size, size, rest
        best = float(heat[0])
        if not outside:
            kept = beginning(heat.astype(np.float64) - best, sampling)
            return kept, kept, rest
        if not first:
            return 0, size, math.inf
        # the rest counts with its highest possible score; tokens not above it may be anywhere among the rest
        below = np.append(heat[:first], highest).astype(np.float64) - best
        sum_of_first = float(np.exp(below[:-1]).sum())
        sum_of_others = float(np.exp(heat[first:].astype(np.float64) - best).sum())
        sum_of_rest = math.exp(min(rest - best, math.log(outside)))
        least = sum_of_first * (1 - _ROUNDING)
        most = (sum_of_first + sum_of_others + sum_of_rest) * (1 + _ROUNDING)
        certain, possible = beginning(below, sampling, least), beginning(below, sampling, most)
        if possible <= first:
            return certain, possible, -math.inf
        if sampling.top_p < 1:
            # top_p keeps the mass that it still needs of the rest, and at most one token more
            needed = sampling.top_p * most - least + math.exp(below[-1])
            rest = min(rest, _a_little_above(best + math.log(needed)))
        return min(certain, first), size, rest

    def _rest_bound(self, outside: int, temperature: float) -> float:
        """Upper bound of log(sum of p ** (1 / temperature)) over any `outside` tokens of the rest.

        No token of the rest exceeds the border, and their total does not exceed `rest`. Under these two bounds the sum
        of p ** b is largest if all are equal for b <= 1 (the power is concave), and if as few tokens as possible have
        all the mass for b >= 1 (it is convex).
        """
        if not outside or self.rest <= 0 or np.isneginf(self.logprobs[-1]):
            return -math.inf
        # Division in float32 may round scores up, which has the effect of a slightly higher temperature.
        power = (1 - 2.0**-22) / float(np.float32(temperature))
        mass, count = math.log(self.rest), math.log(outside)
        border = min(float(self.logprobs[-1]), mass)
        if power <= 1:
            return _a_little_above(count + power * min(border, mass - count))
        return _a_little_above((power - 1) * border + min(mass, count + border))


@dataclass(frozen=True, slots=True, eq=False)
class Unknown:
    """Allowed tokens outside the top k: their number, and a bound on their scores.

    `penalised` are the bounds of those with penalties. `is_behind`: all come after every token of the top k, at least
    by their ids.
    """

    count: int
    highest: np.float32
    penalised: NDArray[np.float32]
    is_behind: bool


_ROUNDING = 1e-9
"""Upper bound of the relative rounding error of float64 sums over a vocabulary."""


def _a_little_above(value: float) -> float:
    """Upper bound of a value after rounding to float32."""
    return value + 1e-6 * (1 + abs(value))


def _outside_top_k(mask: Mask) -> int | Miss | None:
    """The answer if no token of the top k is allowed: None, the only allowed token, or MISS."""
    allowed = int(np.count_nonzero(mask))
    if allowed > 1:
        return MISS
    return int(mask.argmax()) if allowed else None


def best_first(
    ids: NDArray[np.int32], logprobs: NDArray[np.float32], penalties: Penalties
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Tokens of a top k, given best first by log-probability, with their scores and sorted by them, best first."""
    if not penalties:
        return ids, logprobs
    scores = penalties.scores(ids, logprobs)
    order = np.lexsort((ids, -scores))
    return ids[order], scores[order]


def question(mask: Mask, sampling: Sampling | None, penalties: Penalties = NO_PENALTIES) -> bytes:
    """Key of an answer (S1): a digest of 16 bytes of the allowed tokens, the sampling policy and the penalties.

    Seed and index are not part of it. A policy equivalent to argmax is the same question as None. Only the effect of
    penalties on allowed tokens counts.
    """
    policy = b"" if sampling is None or is_greedy(sampling) else sampling.policy
    seen = penalties.among(mask) if penalties else penalties
    if seen:  # no policy contains this word
        policy += b"penalty:" + seen.data
    # the length of the mask and the policy come first, so that no two questions have the same bytes
    digest = hashlib.blake2b(struct.pack("<qq", mask.size, len(policy)) + policy, digest_size=16)
    digest.update(np.packbits(mask).data)
    return digest.digest()


_ROWS = 32


def top_k_of(logprobs: NDArray[np.float32]) -> TopK:
    """The top k of a row of raw log-probabilities, shape (vocabulary,).

    The k-th best maximum of a partition into columns is no better than the k-th best token, so only columns that reach
    it can contain one of the k best. This takes two passes over the row, of which the exponentials are the longer one.
    """
    candidates = _candidates(logprobs)
    best = candidates[np.argsort(-logprobs[candidates], kind="stable")][:TOP_K_TOKENS]
    mass = np.cumsum(np.exp(logprobs[best].astype(np.float64)))
    ids = best[: int(np.searchsorted(mass, 1 - TOP_K_REST)) + 1].astype(np.int32)
    return TopK(ids, logprobs[ids], _mass_without(logprobs, ids), logprobs.size)


def _candidates(logprobs: NDArray[np.float32]) -> NDArray[np.intp]:
    """Ids in ascending order that include the best `TOP_K_TOKENS` and all ties with the last of them."""
    columns = logprobs.size // _ROWS
    if columns <= TOP_K_TOKENS:
        return np.arange(logprobs.size)
    table = logprobs[: columns * _ROWS].reshape(_ROWS, columns)
    highest = table.max(axis=0)
    border = np.partition(highest, -TOP_K_TOKENS)[-TOP_K_TOKENS]
    reaching = np.flatnonzero(highest >= border)
    row, column = np.nonzero(table[:, reaching] >= border)
    return np.concatenate([row * columns + reaching[column], np.arange(columns * _ROWS, logprobs.size)])


def _mass_without(logprobs: NDArray[np.float32], ids: NDArray[np.int32]) -> float:
    """Upper bound of the total probability of all tokens except `ids`, at most 1e-5 (relative) and 1e-32 (absolute)
    above it.

    It is computed in float32, because float64 would take three times as long. The exponential is off by at most 3 units
    in the last place, and a sum of 32 by at most 32. Subnormal results, which take ten times as long and might be
    rounded to 0, are replaced by the smallest normal number.
    """
    others = logprobs.size - ids.size
    if not others:
        return 0.0
    chances = np.maximum(logprobs, _MIN_NORMAL)
    np.exp(chances, out=chances)
    chances[ids] = 0
    whole = chances.size // _ROWS * _ROWS
    mass = chances[:whole].reshape(_ROWS, -1).sum(axis=0).sum(dtype=np.float64) + chances[whole:].sum(dtype=np.float64)
    return float(np.nextafter(np.float32(mass * (1 + 5e-6)), np.float32(np.inf)))


_MIN_NORMAL = np.float32(-87.0)
"""Minimum log-probability with a normal exponential: exp(-87) is 1.6e-38, the smallest normal float32 1.2e-38."""


@dataclass(frozen=True, eq=False)
class Scores:
    """Raw natural log-probabilities, float32, shape (vocabulary,), normalised by the model (S2)."""

    logprobs: NDArray[np.float32]

    @property
    def nbytes(self) -> int:
        return self.logprobs.nbytes

    def logprob(self, token: int) -> float:
        return float(self.logprobs[token])

    def top_k(self) -> TopK:
        """The part of these scores kept after eviction. Made once: 150 µs for 128k tokens, 40 µs for 4k."""
        return self._top_k

    @cached_property
    def _top_k(self) -> TopK:
        return top_k_of(self.logprobs)

    def best(self, mask: Mask, penalties: Penalties = NO_PENALTIES) -> int | None:
        """The allowed token with the highest score, ties to the lowest id (S2). None if no token is allowed."""
        scores = self.logprobs if penalties is NO_PENALTIES else penalties.row(self.logprobs)
        first = int(scores.argmax())
        if mask[first]:  # the usual case, which reads the whole vocabulary only once
            return first
        masked = np.where(mask, scores, -np.inf)
        token = int(masked.argmax())
        return token if mask[token] else _first_allowed(mask)

    def sample(self, mask: Mask, sampling: Sampling, path_hash: int, penalties: Penalties = NO_PENALTIES) -> int | None:
        """A token drawn from the allowed ones under `sampling` (S3). None if no token is allowed.

        Gumbel noise decides among the top k and one bucket for the rest, and if the bucket wins, inside it. The noise
        is a pure function of (seed, index, path, token), so that a draw is repeatable. Mostly the top k decides alone,
        with the same result, and the whole row is not read.
        """
        token = self.top_k().sample(mask, sampling, path_hash, penalties)
        return self.sample_from_all(mask, sampling, path_hash, penalties) if token is MISS else token

    def sample_from_all(
        self, mask: Mask, sampling: Sampling, path_hash: int, penalties: Penalties = NO_PENALTIES
    ) -> int | None:
        """The token of `sample`, always decided by the whole row: the reference for tests of `TopK.sample`."""
        if is_greedy(sampling):
            return self.best(mask, penalties)
        drawn = self._drawn_from_all(mask, sampling, path_hash, penalties)
        return None if drawn is None else drawn.token

    def is_close(self, epsilon: float, mask: Mask, sampling: Sampling, path_hash: int, penalties: Penalties) -> bool:
        """True if scores that differ by `epsilon` might choose another token (S5)."""
        if not self.top_k().is_close(epsilon, mask, sampling, path_hash, penalties):
            return False
        if not is_greedy(sampling):
            drawn = self._drawn_from_all(mask, sampling, path_hash, penalties)
            return drawn is not None and drawn.margin < epsilon
        scores = np.where(mask, penalties.row(self.logprobs), -np.inf)
        near = scores > scores.max() - epsilon
        return int(np.count_nonzero(near)) != 1 and int(np.count_nonzero(mask)) > 1

    def _drawn_from_all(self, mask: Mask, sampling: Sampling, path_hash: int, penalties: Penalties) -> Drawn | None:
        scores, temperature = penalties.row(self.logprobs), np.float32(sampling.temperature)
        tokens = np.flatnonzero(mask)
        if not tokens.size:
            return None
        if sampling.truncates:
            tokens = tokens[np.argsort(-scores[tokens], kind="stable")]
            heat = scores[tokens] / temperature
            if not np.isneginf(heat[0]):
                tokens = tokens[survivors(heat.astype(np.float64) - float(heat[0]), sampling)]
        in_head = np.zeros(mask.size, np.bool_)
        in_head[self.top_k().ids] = True
        known, others = tokens[in_head[tokens]], tokens[~in_head[tokens]]
        known = known[np.lexsort((known, -scores[known]))]
        noisy = scores[known] / temperature + gumbel(sampling, path_hash, known)
        bucket = np.float32(-np.inf)
        if others.size:
            rest = scores[others] / temperature
            bucket = log_sum_exp(rest) + gumbel(sampling, path_hash, np.array([REST]))[0]
            highest = noisy.max(initial=-np.inf)
            if not known.size or bucket > highest:
                within = rest + gumbel(sampling, path_hash, others)
                lead = min(_lead(within), float(bucket) - float(highest))
                return Drawn(int(others[within.argmax()]), sampling.temperature * lead)
        lead = min(_lead(noisy), float(noisy.max()) - float(bucket))
        return Drawn(int(known[noisy.argmax()]), sampling.temperature * lead)


def _lead(values: NDArray[np.float32]) -> float:
    """Distance between the highest value and the second one."""
    if values.size < 2:
        return float("inf")
    second, first = np.partition(values, -2)[-2:]
    return float(first - second) if first > second else 0.0


def _first_allowed(mask: Mask) -> int | None:
    """The lowest allowed id, for when every allowed token scores minus infinity; None if no token is allowed."""
    allowed = np.flatnonzero(mask)
    return int(allowed[0]) if allowed.size else None
