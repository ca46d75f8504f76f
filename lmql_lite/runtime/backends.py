"""What a session keeps of a model: what identifies it, its engine, and how a run gets to write with it."""

from __future__ import annotations

from typing import Protocol

from lmql_lite.cache.texts import END, VOCABULARY
from lmql_lite.cache.tree import TokenTree
from lmql_lite.constraints.hole import Engine
from lmql_lite.constraints.vocabulary import Vocabulary
from lmql_lite.models.base import Completer, Endpoint, Scorer
from lmql_lite.runtime.frontier import Frontier
from lmql_lite.runtime.ledger import Ledger
from lmql_lite.runtime.texts.frontier import TextFrontier
from lmql_lite.runtime.texts.pushing import Pushing
from lmql_lite.runtime.texts.writer import TextWriter
from lmql_lite.runtime.writer import TokenWriter, Writer
from lmql_lite.tokens import Sampling


class Desk(Protocol):
    """A model and a tree, for one event loop: what its runs share."""

    def writer(self, ledger: Ledger, sampling: Sampling, *, isolated: bool) -> Writer: ...


class Backend(Protocol):
    name: str
    fingerprint: str
    vocabulary_size: int

    def desk(self, tree: TokenTree, *, speculate: bool, replay: bool) -> Desk: ...


class TokenBackend:
    """A model in this process."""

    def __init__(self, scorer: Scorer) -> None:
        self.name = scorer.name
        self.fingerprint = scorer.fingerprint
        self.vocabulary_size = len(scorer.tokenizer.vocabulary)
        self._scorer = scorer
        self._engine = Engine(Vocabulary(scorer.tokenizer.vocabulary, scorer.tokenizer.eos))

    def desk(self, tree: TokenTree, *, speculate: bool, replay: bool) -> TokenDesk:
        return TokenDesk(Frontier(self._scorer, tree, speculate=speculate, replay=replay), self._engine)


class TokenDesk:
    def __init__(self, frontier: Frontier, engine: Engine) -> None:
        self._frontier = frontier
        self._engine = engine

    def writer(self, ledger: Ledger, sampling: Sampling, *, isolated: bool) -> TokenWriter:
        return TokenWriter(self._frontier, self._engine, ledger, sampling, isolated=isolated)


class TextBackend:
    """A model behind an API. Its matchers read bytes: nothing else is known of its vocabulary."""

    vocabulary_size = VOCABULARY

    def __init__(self, completer: Completer, endpoint: Endpoint) -> None:
        self.name = completer.name
        self.fingerprint = endpoint.fingerprint
        self.completer = completer
        self._endpoint = endpoint
        self._engine = Engine(Vocabulary((*(bytes([byte]) for byte in range(END)), None), frozenset({END})))
        self._pushing = Pushing(self._engine, endpoint)

    def desk(self, tree: TokenTree, *, speculate: bool, replay: bool) -> TextDesk:
        frontier = TextFrontier(self.completer, self._endpoint, tree, replay=replay)
        return TextDesk(frontier, self._engine, self._pushing, speculate)


class TextDesk:
    def __init__(self, frontier: TextFrontier, engine: Engine, pushing: Pushing, speculate: bool) -> None:
        self._frontier = frontier
        self._engine = engine
        self._pushing = pushing
        self._speculate = speculate

    def writer(self, ledger: Ledger, sampling: Sampling, *, isolated: bool) -> TextWriter:
        frontier, engine, speculate = self._frontier, self._engine, self._speculate and not isolated
        return TextWriter(frontier, engine, self._pushing, ledger, sampling, isolated=isolated, speculate=speculate)
