"""The token tree of a server that speaks text: its nodes are bytes, so that what it said is found however a prompt cuts
the same text into parts (S11). What is known of a node is the byte that came next.

A head there is that of a token: its first entry is the byte with which it begins. Where the server told them, its own
number and the other tokens that might have come follow (`_told`), which no walk by bytes could tell from texts.
"""

from __future__ import annotations

import functools
import hashlib
import math
import struct
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from lmql_lite.cache.head import Head
from lmql_lite.cache.sampling import is_greedy
from lmql_lite.cache.tree import Answer, Fact, Node, TokenTree
from lmql_lite.tokens import Sampling

END = 256
"""Stands for end-of-text."""
TURNS = {"system": 257, "user": 258, "assistant": 259}
"""Each stands for the beginning of a turn of a chat: turns are part of the path."""
VOCABULARY = 1 << 28
"""Above all that a head holds: bytes, marks, pieces of tokens, numbers of tokens."""

INSIDE = 1.0
"""In the place of a log-probability: this byte goes on with the token before it."""
UNTOLD = -math.inf
"""In the place of a log-probability that the server did not tell."""


@dataclass(frozen=True, slots=True)
class Manner:
    """How a text was asked for: what it answers, and nothing else (S1).

    `question` None is the plain one: freely, and the most likely text. Its answers are facts that may serve under any
    condition that they meet; those to other questions are verdicts, and where `seed` is set draws of the server's own,
    which are only repeated under that seed (S6).
    """

    question: bytes | None = None
    seed: int | None = None
    index: int = 0
    numbered: bool = False
    """The numbers of the tokens are kept with the answers: one that does not fit is ruled out by its number."""

    @property
    def of_numbers(self) -> bytes:
        assert self.question is not None, "a plain answer holds the number"
        return _digest(self.question + b"number" + struct.pack("<Qq", self.seed or 0, self.index))

    @staticmethod
    def of(condition: bytes, sampling: Sampling) -> Manner:
        """`condition` tells apart what text was asked for, b"" for any."""
        penalties = b""
        if sampling.penalises:
            strengths = sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty
            penalties = b"penalty:" + struct.pack("<3d", *strengths)
        if is_greedy(sampling):
            return Manner(_digest(penalties + condition) if penalties or condition else None)
        policy = struct.pack("<fqdd", sampling.temperature, sampling.top_k or 0, sampling.top_p, sampling.min_p)
        return Manner(_digest(policy + penalties + condition), sampling.seed, sampling.index)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


Alternatives = tuple[tuple[bytes, float], ...]
"""Other tokens that might have come, best first, with their log-probabilities."""
NOTES_KEPT = 10_000

_PIECE = 3
"""So many bytes of a token are one entry, with how many they are and whether there are more."""
_SIZE, _MORE, _NUMBER = 24, 1 << 26, 1 << 27


@dataclass(frozen=True, slots=True)
class Said:
    """A token of a server, or what is left of one: its bytes, b"" for end-of-text.

    `logprob` is None where it was not told; `run` as in `Fact`. `inside`: the server said it as the end of a longer
    token, and was never asked what comes after the text so far. `manner`: what it answers, for `Texts.beside`.
    """

    data: bytes
    logprob: float | None
    run: int
    inside: bool = False
    manner: Manner = Manner()

    @property
    def ends(self) -> bool:
        return not self.data


class Spoken(Protocol):
    """A token as a server says it: its number there, and what might have come instead, raw and best first."""

    @property
    def data(self) -> bytes: ...
    @property
    def logprob(self) -> float | None: ...
    @property
    def token(self) -> int | None: ...
    @property
    def alternatives(self) -> Alternatives: ...


class Word(NamedTuple):
    """`Spoken`, as a value; b"" is end-of-text."""

    data: bytes
    logprob: float | None
    token: int | None = None
    alternatives: Alternatives = ()


class Texts:
    """Reads and writes such a tree."""

    def __init__(self, tree: TokenTree) -> None:
        self.tree = tree
        self._notes: OrderedDict[tuple[int, Manner], tuple[int | None, Alternatives]] = OrderedDict()
        """What was told beside answers that are no scores. By the hash of the path: a note keeps no node."""

    def walk(self, node: Node, data: bytes) -> Node:
        """Where the bytes lead to from `node`."""
        return self.tree.lead(node, data)

    def write(
        self,
        node: Node,
        data: bytes,
        logprob: float | None,
        manner: Manner,
        run: int,
        token: int | None = None,
        others: Alternatives = (),
    ) -> Node:
        """`say`, of one token or end-of-text. Where it leads to."""
        tip = self.say(node, (Word(data, logprob, token, others),), manner, run)[-1]
        self.tree.unpin(tip)
        return tip

    def say(self, node: Node, words: Sequence[Spoken], manner: Manner, run: int) -> list[Node]:
        """After `node` the server said these tokens. Gives the nodes behind each of their bytes, and pins the last one,
        as `TokenTree.say` does. Where something else is known, that stays (S6).

        Numbers and alternatives are kept with plain answers, and else are remembered for a while.
        """
        if manner.question is not None:
            return self._answer_with(node, words, manner, run)
        tokens: list[int] = []
        facts: list[Fact] = []
        for word in words:
            first, *inner = word.data or (END,)
            tokens += first, *inner
            facts.append(Fact(_head(first, _kept(word.logprob), word.token, word.alternatives), run))
            facts += [_inside(byte, run) for byte in inner]
        return self.tree.say(node, tokens, facts)

    def _answer_with(self, node: Node, words: Sequence[Spoken], manner: Manner, run: int) -> list[Node]:
        """What was said answers a question."""
        way: list[Node] = []
        self.tree.pin(self.tree.lead(node, [token for word in words for token in word.data or (END,)]))
        for word in words:
            if word.data:
                self._note(node, manner, word.token, word.alternatives)
                if manner.numbered and word.token is not None and 0 <= word.token < _NUMBER:
                    self.tree.add_verdict(node, manner.of_numbers, Answer(word.token, 0.0, run))
            logprob = _kept(word.logprob)
            for byte in word.data or (END,):
                self._add(node, byte, logprob, manner, run)
                node = self.tree.extend(node, byte)
                way.append(node)
                logprob = INSIDE
        return way

    def _note(self, node: Node, manner: Manner, token: int | None, others: Alternatives) -> None:
        if others or token is not None:
            as_kept = tuple((data, float(np.float32(score))) for data, score in others)
            self._notes.setdefault((self.tree.path_hash(node), manner), (token, as_kept))
            if len(self._notes) > NOTES_KEPT:
                self._notes.popitem(last=False)

    def read(self, node: Node, manners: Sequence[Manner]) -> Said | None:
        """The token after `node`, as the first of these manners knows it. None where none does."""
        for manner in manners:
            heard = self._heard(node, manner)
            if heard is not None:
                tokens, logprob, run = heard
                data = b"" if tokens[0] == END else bytes(tokens)
                return Said(data, None if logprob in (UNTOLD, INSIDE) else logprob, run, logprob == INSIDE, manner)
        return None

    def _heard(self, node: Node, manner: Manner) -> tuple[list[int], float, int] | None:
        """The bytes of one token, or its end-of-text; its log-probability, and the run that asked for it."""
        if manner.question is None:
            heard = self.tree.hear(node, INSIDE)
            if heard is None:
                return None
            fact, tokens = heard
            assert isinstance(fact.scores, Head), "servers that speak text tell no whole scores"
            return tokens, fact.scores.logprobs.item(0), fact.run
        first = answer = self._answer(node, manner)
        if first is None:
            return None
        tokens = []
        while answer is not None and (answer is first or answer.logprob == INSIDE):
            tokens.append(answer.token)
            if answer.token == END:
                break
            node = self.tree.extend(node, answer.token)
            answer = self._answer(node, manner)
        return tokens, first.logprob, first.run

    def beside(self, node: Node, said: Said) -> tuple[int | None, Alternatives | None]:
        """Of what was said after `node` the server's own number, and what might have come instead.

        None where that is not known (any more).
        """
        manner = said.manner
        if manner.question is not None:
            token, others = self._notes.get((self.tree.path_hash(node), manner), (None, None))
            number = self.tree.verdict(node, manner.of_numbers) if manner.numbered and token is None else None
            return number.token if number else token, others
        fact = self.tree.scores(node)
        return _told(fact.scores) if fact is not None and isinstance(fact.scores, Head) else (None, None)

    def _add(self, node: Node, byte: int, logprob: float, manner: Manner, run: int) -> None:
        assert manner.question is not None, "plain answers are scores"
        if manner.seed is None:
            self.tree.add_verdict(node, manner.question, Answer(byte, logprob, run))
        else:
            self.tree.add_draw(node, manner.question, manner.seed, manner.index, Answer(byte, logprob, run))

    def _answer(self, node: Node, manner: Manner) -> Answer | None:
        assert manner.question is not None, "plain answers are scores"
        if manner.seed is None:
            return self.tree.verdict(node, manner.question)
        return self.tree.draw(node, manner.question, manner.seed, manner.index)


def _kept(logprob: float | None) -> float:
    """As a file keeps it."""
    return UNTOLD if logprob is None else float(np.float32(logprob))


def _head(byte: int, logprob: float, token: int | None = None, others: Alternatives = ()) -> Head:
    entries, logprobs = [byte], [logprob]
    if token is not None and 0 <= token < _NUMBER:
        entries.append(_NUMBER | token)
        logprobs.append(logprob)
    for data, score in others:
        if score > logprob:  # it did not say its best, or tells other scores than it goes by
            continue
        pieces = _pieces(data)
        entries += pieces
        logprobs += [score] * len(pieces)
    return Head(np.array(entries, np.int32), np.array(logprobs, np.float32), 1.0, VOCABULARY)


def _told(head: Head) -> tuple[int | None, Alternatives]:
    """What `_head` was given beside the byte."""
    if head.ids.size == 1:
        return None, ()
    rest = list(zip(head.ids[1:].tolist(), head.logprobs[1:].tolist(), strict=True))
    token = None
    if rest[0][0] >= _NUMBER:
        token = rest.pop(0)[0] - _NUMBER
    return token, tuple(_joined(rest))


@functools.lru_cache(1 << 16)
def _pieces(data: bytes) -> tuple[int, ...]:
    """A token as entries of a head."""
    parts = [data[at : at + _PIECE] for at in range(0, len(data), _PIECE)]
    found = [len(part) << _SIZE | _MORE | int.from_bytes(part.ljust(_PIECE, b"\0")) for part in parts]
    return (*found[:-1], found[-1] ^ _MORE)


def _joined(entries: Sequence[tuple[int, float]]) -> Iterator[tuple[bytes, float]]:
    data = b""
    for entry, logprob in entries:
        size = entry >> _SIZE & _PIECE
        data += (entry & (1 << _SIZE) - 1).to_bytes(_PIECE)[:size]
        if not entry & _MORE:
            yield data, logprob
            data = b""


_INSIDE = [_head(byte, INSIDE) for byte in range(256)]


@functools.lru_cache(1 << 10)
def _inside(byte: int, run: int) -> Fact:
    """That a byte goes on with the token before it. One object for all places of a run: most facts are of this kind."""
    return Fact(_INSIDE[byte], run)
