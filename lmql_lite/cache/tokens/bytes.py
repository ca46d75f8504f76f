"""Byte tree: the token tree of a server's text. Nodes are bytes, so that an answer is found however a prompt divides
the same text into parts (S11). An entry is at the first byte of a server's token, and has the whole token.

Such an entry is a `TopK` whose first token is the first byte. The id of the server's token and its alternatives follow,
if the server reported them; walks by bytes never reach those.
"""

from __future__ import annotations

import functools
import hashlib
import math
import struct
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from lmql_lite.cache.tokens.draws import is_greedy
from lmql_lite.cache.tokens.nodes import SCORES, Answer, Entry, Node, Question, ScoreEntry
from lmql_lite.cache.tokens.rows import DIGEST as DIGEST
from lmql_lite.cache.tokens.rows import END as END
from lmql_lite.cache.tokens.rows import INSIDE, MAX_PIECE
from lmql_lite.cache.tokens.rows import MEDIA as MEDIA
from lmql_lite.cache.tokens.rows import TURNS as TURNS
from lmql_lite.cache.tokens.rows import VOCABULARY as VOCABULARY
from lmql_lite.cache.tokens.scores import TopK
from lmql_lite.cache.tokens.tree import TokenTree
from lmql_lite.media import Media
from lmql_lite.options import Sampling

UNREPORTED = -math.inf
"""Mark in place of a log-probability that the server did not report."""


def media_tokens(item: Media) -> tuple[int, ...]:
    """Tokens that represent an item on a path."""
    return (MEDIA[item.modality], *(DIGEST + byte for byte in bytes.fromhex(item.digest)))


@dataclass(frozen=True, slots=True)
class CacheKey:
    """Identity of the question that a text answers (S1).

    `question` is None for the most likely text without a condition. Such plain answers count under any condition that
    they meet. All others are greedy answers or, if `seed` is set, sampled answers of the server, which are repeated
    only under that seed (S6).
    """

    question: bytes | None = None
    seed: int | None = None
    index: int = 0

    @property
    def asked(self) -> Question:
        """The question as the token tree has it."""
        if self.question is None or self.seed is None:
            return self.question or SCORES
        return self.question, self.seed, self.index

    @staticmethod
    def of(condition: bytes, sampling: Sampling) -> CacheKey:
        """Key of a question under a condition; b"" stands for no condition."""
        options = b""
        if sampling.penalises:
            strengths = sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty
            options = b"penalty:" + struct.pack("<3d", *strengths)
        if sampling.effort is not None:
            options += b"effort:%b;" % sampling.effort.encode()
        if is_greedy(sampling):
            return CacheKey(_digest(options + condition) if options or condition else None)
        return CacheKey(_digest(sampling.policy + options + condition), sampling.seed, sampling.index)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


Alternatives = tuple[tuple[bytes, float], ...]
"""Other candidates for a token, best first, with their log-probabilities."""
NOTES_KEPT = 10_000

_PIECE = 3
"""Bytes of a token per number, which also holds their count and a flag for more."""
_SIZE, _MORE, _NUMBER = 24, 1 << 26, 1 << 27


@dataclass(frozen=True, slots=True)
class KnownToken:
    """Token of a server, or the rest of one: its bytes, b"" for end-of-text.

    `logprob` is None if it was not reported; `run` is that of `ScoreEntry`. `inside`: the bytes are the end of a longer
    token, and the server was never asked for a token at this place. `key` is the question that the token answers.
    """

    data: bytes
    logprob: float | None
    run: int
    inside: bool = False
    key: CacheKey = CacheKey()

    def within(self, data: bytes) -> KnownToken:
        """The part of the token with these bytes, which begin it."""
        return self if data == self.data else replace(self, data=data)

    @property
    def ends(self) -> bool:
        return not self.data


class TokenRecord(Protocol):
    """Token as reported by a server, with the server's id and the alternatives, raw and best first."""

    @property
    def data(self) -> bytes: ...
    @property
    def logprob(self) -> float | None: ...
    @property
    def token(self) -> int | None: ...
    @property
    def alternatives(self) -> Alternatives: ...


class PlainToken(NamedTuple):
    """Value of a `TokenRecord`; b"" is end-of-text."""

    data: bytes
    logprob: float | None
    token: int | None = None
    alternatives: Alternatives = ()


class ByteTree:
    """Reads and writes a token tree as text."""

    def __init__(self, tree: TokenTree) -> None:
        self.tree = tree
        self._notes: OrderedDict[tuple[int, CacheKey], tuple[int | None, Alternatives]] = OrderedDict()
        """Ids and alternatives of answers without scores, by the hash of the path, so that no node is kept."""

    def walk(self, node: Node, data: bytes) -> Node:
        """Node to which the bytes lead from `node`."""
        return self.tree.extend_path(node, data)

    def write(
        self,
        node: Node,
        data: bytes,
        logprob: float | None,
        key: CacheKey,
        run: int,
        token: int | None = None,
        others: Alternatives = (),
    ) -> Node:
        """Writes one token or end-of-text after `node`, and returns the node to which it leads."""
        tip = self.append(node, (PlainToken(data, logprob, token, others),), key, run)[-1]
        self.tree.unpin(tip)
        return tip

    def append(self, node: Node, tokens: Sequence[TokenRecord], key: CacheKey, run: int) -> list[Node]:
        """Writes tokens of a server after `node`, and returns the node after each byte; the last one is pinned.

        Known entries stay (S6). Ids and alternatives are stored with plain answers, else remembered for a while.
        """
        path: list[int] = []
        begins: list[int] = []
        entries: dict[int, Entry] = {}
        for token in tokens:
            begins.append(len(path))
            logprob, number, others = _stored(token.logprob), token.token, token.alternatives
            for at in range(0, len(token.data) or 1, MAX_PIECE):
                first, *inner = token.data[at : at + MAX_PIECE] or (END,)
                if key.question is None:
                    entries[len(path)] = ScoreEntry(_entry(first, logprob, number, others), run, bytes(inner))
                else:
                    entries[len(path)] = Answer(first, logprob, run, bytes(inner))
                path += first, *inner
                logprob, number, others = INSIDE, None, ()
        nodes = self.tree.add_path(node, path, entries, key.asked)
        if key.question is not None:
            for begin, token in zip(begins, tokens, strict=True):
                self._note(nodes[begin - 1] if begin else node, key, token.token, token.alternatives)
        return nodes

    def _note(self, node: Node, key: CacheKey, token: int | None, others: Alternatives) -> None:
        if others or token is not None:
            as_stored = tuple((data, float(np.float32(score))) for data, score in others)
            self._notes.setdefault((self.tree.path_hash(node), key), (token, as_stored))
            if len(self._notes) > NOTES_KEPT:
                self._notes.popitem(last=False)

    def read(self, node: Node, keys: Sequence[CacheKey]) -> KnownToken | None:
        """Token after `node`, under the first of these keys that has one; None for a miss."""
        for key in keys:
            found = self.tree.entry_around(node, key.asked)
            if found is not None:
                entry, before = found
                data = b"" if entry.tokens[0] == END else self._from(node, entry, before, key)
                logprob = INSIDE if before else entry.logprob
                reported = None if logprob in (UNREPORTED, INSIDE) else logprob
                return KnownToken(data, reported, entry.run, logprob == INSIDE, key)
        return None

    def _from(self, node: Node, entry: Entry, before: int, key: CacheKey) -> bytes:
        """Bytes of a token from `node` on, also those in further entries of a long one."""
        data = bytes(entry.tokens[before:])
        while len(entry.tokens) == MAX_PIECE:
            node = self.tree.extend_path(node, entry.tokens[before:])
            following = self.tree.entry_around(node, key.asked)
            if following is None or following[1] or following[0].logprob != INSIDE:
                break
            entry, before = following
            data += bytes(entry.tokens)
        return data

    def details(self, node: Node, known: KnownToken) -> tuple[int | None, Alternatives | None]:
        """Id and alternatives of a token after `node`; each is None if it is not known, or no longer."""
        key = known.key
        if key.question is not None:
            token, others = self._notes.get((self.tree.path_hash(node), key), (None, None))
            return token, others
        entry = None if known.inside else self.tree.scores(node)
        return _details(entry.top_k()) if entry is not None else (None, ())


def _stored(logprob: float | None) -> float:
    """Log-probability in the precision of a file."""
    return UNREPORTED if logprob is None else float(np.float32(logprob))


def _entry(byte: int, logprob: float, token: int | None = None, others: Alternatives = ()) -> TopK:
    entries, logprobs = [byte], [logprob]
    if token is not None and 0 <= token < _NUMBER:
        entries.append(_NUMBER | token)
        logprobs.append(logprob)
    for data, score in others:
        if score > logprob:  # the server did not choose its best token, or chooses by other scores
            continue
        pieces = _pieces(data)
        entries += pieces
        logprobs += [score] * len(pieces)
    return TopK(np.array(entries, np.int32), np.array(logprobs, np.float32), 1.0, VOCABULARY)


def _details(entry: TopK) -> tuple[int | None, Alternatives]:
    """Id and alternatives of an entry."""
    if entry.ids.size == 1:
        return None, ()
    rest = list(zip(entry.ids[1:].tolist(), entry.logprobs[1:].tolist(), strict=True))
    token = None
    if rest[0][0] >= _NUMBER:
        token = rest.pop(0)[0] - _NUMBER
    return token, tuple(_joined(rest))


@functools.lru_cache(1 << 16)
def _pieces(data: bytes) -> tuple[int, ...]:
    """Numbers that encode the bytes of a token in an entry."""
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
