"""What a server is asked for in a hole: how much, held to what, and what of the tree counts as an answer (S1, S17)."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, replace

from lmql_lite.cache.sampling import is_greedy
from lmql_lite.cache.texts import Manner
from lmql_lite.constraints.language import Language
from lmql_lite.models.base import Endpoint, JsonSchema, Wish
from lmql_lite.runtime.texts.frontier import Asking
from lmql_lite.tokens import Sampling

ALTERNATIVES = 5
"""So many other tokens are asked for with each one, where the server tells them."""


@dataclass(frozen=True, slots=True)
class Segment:
    """What a server is held to from the beginning of a segment to its end (S16).

    `identity` stands for all of it: conditions, texts and place. `begin`: how many bytes of text are before it.
    `pushed` is what may be said, in the form that the server takes; `stops` are texts that end it. Where neither is set
    the server speaks freely, and where more `goes_on` after the segment it may speak on; it is held to the `language`
    then where what it says does not fit.
    """

    identity: bytes
    begin: int
    language: Language | None = None
    pushed: Language | JsonSchema | None = None
    stops: tuple[str, ...] = ()
    goes_on: bool = False

    def ends(self, said: bytes) -> bool:
        """Whether nothing may be said after this text, so that the server ends here by itself."""
        if isinstance(self.pushed, Language):
            left = self.pushed.after(said[self.begin :].decode())
            return left is not None and not left.rules[0].edges
        return said.endswith(tuple(stop.encode() for stop in self.stops))


@dataclass(frozen=True, slots=True)
class Wishes:
    """Of one hole. `isolated`: nothing is taken that was not said for this very hole (S7)."""

    segment: Segment
    endpoint: Endpoint
    sampling: Sampling
    isolated: bool

    @property
    def draws(self) -> bool:
        return not is_greedy(self.sampling)

    @property
    def held(self) -> Manner:
        """Under the conditions of the segment."""
        return self._manner(self.segment.identity)

    def _manner(self, condition: bytes) -> Manner:
        return replace(Manner.of(condition, self.sampling), numbered=self.draws and self.endpoint.takes_bans)

    def asking(self) -> Asking:
        segment, held, plain = self.segment, self.held, self._manner(b"")
        alone = self.isolated or self.sampling.penalises
        reads = (held,) if alone else (held, plain)
        writes = held if alone or segment.pushed is not None else plain
        speaks_on = segment.goes_on and segment.pushed is None and not segment.stops and not alone

        def wish(left: int, stride: int, said: bytes) -> Wish:
            return self._wish(stride if speaks_on else left, said)

        return Asking(reads, writes, wish, segment.ends)

    def anew(self, banned: tuple[int, ...]) -> Asking:
        """Where what it said freely does not fit: a question that it was not asked before (S22).

        What it says without the `banned` tokens is its answer to that, and to nothing else.
        """
        segment = replace(self.segment, pushed=self.segment.language or self.segment.pushed)
        held, manner = replace(self, segment=segment), self.held
        if banned:
            ruled_out = struct.pack(f"<{len(banned)}i", *banned)
            manner = replace(Manner.of(self.segment.identity + ruled_out, self.sampling), numbered=True)

        def wish(left: int, stride: int, said: bytes) -> Wish:
            # of banned tokens only what comes first is not to be one
            return replace(held._wish(1 if banned else left, said), banned=banned)

        return Asking((manner,), manner, wish, segment.ends)

    def one_token(self) -> Asking:
        """The most likely token, freely, and what might come instead: it is known with the plain answer (S1)."""
        plain, free = Manner(), replace(self, sampling=Sampling(), segment=Segment(b"", 0))

        def wish(left: int, stride: int, said: bytes) -> Wish:
            return free._wish(1, said)

        return Asking((plain,), plain, wish, free.segment.ends)

    def beyond(self) -> Wishes:
        """Where all was said that the server was held to, and the hole is not over: what comes then is free."""
        identity = hashlib.blake2b(self.segment.identity + b"beyond", digest_size=16).digest()
        return replace(self, segment=Segment(identity, self.segment.begin, goes_on=self.segment.goes_on))

    def again(self) -> Wishes:
        """Another draw."""
        return replace(self, sampling=replace(self.sampling, index=self.sampling.index + 1))

    def _wish(self, amount: int, said: bytes) -> Wish:
        segment, pushed = self.segment, self.segment.pushed
        if isinstance(pushed, Language):
            pushed = pushed.after(said[segment.begin :].decode())
        elif said[segment.begin :]:
            pushed = None  # a schema holds for a whole value
        alternatives = min(ALTERNATIVES, self.endpoint.alternatives)
        return Wish(amount, segment.stops, pushed, self.sampling, alternatives=alternatives)
