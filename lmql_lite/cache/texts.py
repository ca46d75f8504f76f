"""The token tree of a server that speaks text: its nodes are bytes, so that what it said is found however a prompt cuts
the same text into parts (S11). What is known of a node is the byte that came next.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lmql_lite.cache.head import Head
from lmql_lite.cache.sampling import is_greedy
from lmql_lite.cache.tree import Answer, Node, TokenTree
from lmql_lite.tokens import Sampling

END = 256
"""Stands for end-of-text."""
TURNS = {"system": 257, "user": 258, "assistant": 259}
"""Each stands for the beginning of a turn of a chat: turns are part of the path."""
VOCABULARY = 260

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


@dataclass(frozen=True, slots=True)
class Said:
    """A token of a server, or what is left of one: its bytes, b"" for end-of-text.

    `logprob` is None where it was not told; `run` as in `Fact`. `inside`: the server said it as the end of a longer
    token, and was never asked what comes after the text so far.
    """

    data: bytes
    logprob: float | None
    run: int
    inside: bool = False

    @property
    def ends(self) -> bool:
        return not self.data


class Texts:
    """Reads and writes such a tree."""

    def __init__(self, tree: TokenTree) -> None:
        self.tree = tree
        self._notes: OrderedDict[int, tuple[int | None, Alternatives]] = OrderedDict()
        """By the hash of the path: a note keeps no node."""

    def walk(self, node: Node, data: bytes) -> Node:
        """Where the bytes lead to from `node`."""
        node, known = self.tree.walk(node, data)
        for byte in data[known:]:
            node = self.tree.extend(node, byte)
        return node

    def write(self, node: Node, data: bytes, logprob: float | None, manner: Manner, run: int) -> Node:
        """After `node` the server said these bytes, one token of its own; b"" is end-of-text. Where they lead to.

        Where something else is known, that stays (S6).
        """
        said = UNTOLD if logprob is None else float(np.float32(logprob))
        if manner.question is None:
            first, *others = data or (END,)
            way = [(first, _head(first, said)), *((byte, _INSIDE[byte]) for byte in others)]
            return self.tree.say(node, way, run)
        for byte in data or (END,):
            self._add(node, byte, said, manner, run)
            node = self.tree.extend(node, byte)
            said = INSIDE
        return node

    def note(self, node: Node, token: int | None, alternatives: Alternatives) -> None:
        """What the server said after `node`, by its own number, and what else it might have said.

        Remembered for a while, and never saved.
        """
        if alternatives or token is not None:
            self._notes[self.tree.path_hash(node)] = (token, alternatives)
            if len(self._notes) > NOTES_KEPT:
                self._notes.popitem(last=False)

    def noted(self, node: Node) -> tuple[int | None, Alternatives]:
        return self._notes.get(self.tree.path_hash(node), (None, ()))

    def read(self, node: Node, manners: Sequence[Manner]) -> Said | None:
        """The token after `node`, as the first of these manners knows it. None where none does."""
        for manner in manners:
            answer = self._answer(node, manner)
            if answer is None:
                continue
            first, data = answer, bytearray()
            while answer is not None and answer.token != END:
                data.append(answer.token)
                node = self.tree.extend(node, answer.token)
                answer = self._answer(node, manner)
                if answer is None or answer.logprob != INSIDE:
                    break
            logprob = None if first.logprob in (UNTOLD, INSIDE) else first.logprob
            return Said(bytes(data), logprob, first.run, inside=first.logprob == INSIDE)
        return None

    def _add(self, node: Node, byte: int, logprob: float, manner: Manner, run: int) -> None:
        assert manner.question is not None, "plain answers are scores"
        if manner.seed is None:
            self.tree.add_verdict(node, manner.question, Answer(byte, logprob, run))
        else:
            self.tree.add_draw(node, manner.question, manner.seed, manner.index, Answer(byte, logprob, run))

    def _answer(self, node: Node, manner: Manner) -> Answer | None:
        if manner.question is None:
            fact = self.tree.scores(node)
            if fact is None:
                return None
            assert isinstance(fact.scores, Head), "servers that speak text tell no whole scores"
            return Answer(int(fact.scores.ids[0]), float(fact.scores.logprobs[0]), fact.run)
        if manner.seed is None:
            return self.tree.verdict(node, manner.question)
        return self.tree.draw(node, manner.question, manner.seed, manner.index)


def _head(byte: int, logprob: float) -> Head:
    return Head(np.array([byte], np.int32), np.array([logprob], np.float32), 1.0, VOCABULARY)


_INSIDE = [Head(np.array([byte], np.int32), np.array([INSIDE], np.float32), 1.0, VOCABULARY) for byte in range(256)]
