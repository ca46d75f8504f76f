"""Scripted model, for tests, documentation and examples: deterministic, free, and part of the package.

    scripted = ScriptedModel("- Sunscreen\\n- Towel\\n")

The model continues its script from wherever the text so far has reached. It is a real Scorer: every token has a score,
most of them pseudo-random and dependent on the whole path, so that masks, sampling and caches have work to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b
from uuid import uuid4

import numpy as np

from lmql_lite.cache.tokens.draws import mix
from lmql_lite.errors import ModelError
from lmql_lite.models.base import Row, Scorer, ScoreRequest

WORDS = (
    b"\n", b"\n\n", b"\n-", b"- ", b".\n", b"?\n", b".\n\n", b" the", b" a", b" and", b" is", b" of", b"the", b"ing",
    b"er", b"on", b"an", b" S", b" T", b" to", b"Q:", b"A:", b" Why", b" Be", b"ca", b"use", b'"', b'":', b' "', b", ",
    b"Option", b" Option", b" A", b" B", b" with", b"12", b" 1", "é".encode(), "😀".encode(), b"  ", b"    ",
)  # fmt: skip
"""Vocabulary in addition to all single bytes. Several words run past a line's end, as tokens of real models do."""

WORDS_AT = 258
"""Number of the first word: begin- and end-of-text and the single bytes come first."""
NOISE = 8
"""Upper end of the noise, in nats."""

Script = Callable[[bytes], bytes]
"""Function from the text so far to the preferred continuation; b"" means end-of-text.

One that gives the same answer however much of it the text already has is a script too: see `continued`."""


class ScriptedTokenizer:
    """Tokenizer of single bytes and a few words; the longest matching token is the canonical one."""

    bos = (0,)
    eos = frozenset({1})

    def __init__(self, words: Sequence[bytes] = WORDS) -> None:
        self.vocabulary: tuple[bytes | None, ...] = (None, None, *(bytes([byte]) for byte in range(256)), *words)
        self._ids = {data: token for token, data in enumerate(self.vocabulary) if data is not None}
        self._longest = max(map(len, self._ids))

    def encode(self, text: bytes) -> tuple[int, ...]:
        ids = []
        start = 0
        while start < len(text):
            token = self.first(text[start:])
            ids.append(token)
            start += len(self.vocabulary[token] or b"")
        return tuple(ids)

    def first(self, text: bytes) -> int:
        """Longest token that `text` begins with."""
        return next(self._ids[text[:length]] for length in range(self._longest, 0, -1) if text[:length] in self._ids)

    def decode(self, ids: Sequence[int]) -> bytes:
        return b"".join(self.vocabulary[token] or b"" for token in ids)


class ScriptedModel(Scorer):
    """A Scorer over a script.

    `script` is a text that continues from wherever the text so far has reached in it (a text that left the script is
    answered with end-of-text), or a function from the text so far to what comes next. Models of one text are the same
    model to a cache; a model of a function is only itself, because nothing else tells two functions apart. `certainty`
    is the margin of the scripted token over the noise, in nats; 0 leaves a random model. `levels` coarsens the noise so
    that ties happen.

    >>> lq.generate_sync("A list:\\n-", stop="\\n", model=lq.ScriptedModel("A list:\\n- Sun\\n"))
    ' Sun'
    """

    context_length = 4096
    tokenizer: ScriptedTokenizer

    def __init__(
        self,
        script: str | Script,
        *,
        seed: int = 0,
        certainty: float = 20.0,
        levels: int | None = None,
        words: Sequence[bytes] = WORDS,
        name: str = "scripted",
    ) -> None:
        self.name = name
        self.tokenizer = ScriptedTokenizer(words)
        self._is_text = isinstance(script, str)
        self.script = spoken(script) if isinstance(script, str) else partial(continued, script)
        self.calls = 0
        self.positions = 0
        self._seed = seed
        self._newest: tuple[tuple[int, ...], int] = ((), 0)
        """The text that was scored last, and the hash of its path."""
        self._certainty = certainty
        self._levels = levels
        self.fingerprint = f"scripted:{_identity(script, seed, certainty, levels, tuple(words))}"

    async def score(self, requests: Sequence[ScoreRequest]) -> list[list[Row]]:
        self.calls += 1
        return [
            [self._scores(request.prefix + request.new_ids[:position]) for position in request.positions]
            for request in requests
        ]

    def _scores(self, ids: tuple[int, ...]) -> Row:
        self.positions += 1
        if len(ids) > self.context_length:
            raise ModelError(
                f"the text is {len(ids)} tokens long, but the scripted model reads at most {self.context_length}"
            )
        known, path = self._newest
        rest = ids[len(known) :]
        if not known or ids[: len(known)] != known:
            rest, path = ids, self._seed
        for token in rest:
            path = mix(path, token)
        self._newest = ids, path
        logits = np.random.default_rng(path).random(len(self.tokenizer.vocabulary)) * NOISE
        if self._levels is not None:
            logits = np.floor(logits * self._levels / NOISE)
        if self._certainty:
            if not self._is_text:  # it never sees the token that healing takes back, and must not lengthen it
                logits[WORDS_AT:] -= NOISE
            wanted = self.script(self.tokenizer.decode(ids))
            logits[self.tokenizer.first(wanted) if wanted else 1] += self._certainty
        logits -= logits.max()
        logprobs: Row = (logits - np.log(np.exp(logits).sum())).astype(np.float32)
        return logprobs


def _identity(script: str | Script, *options: object) -> str:
    """Digest of a text and options. A function has no name of its own: each model of one gets a new identity, which a
    pickled copy keeps."""
    if not isinstance(script, str):
        return uuid4().hex
    return blake2b(repr((script, *options)).encode(), digest_size=16).hexdigest()


def continued(script: Script, written: bytes) -> bytes:
    """The script's answer, less what the text already has of it.

    `lambda text: b" yes"` says " yes" to "Rain?", " yes" again to "Rain? ", and so on for ever. The text is in the
    middle of an answer if the script gives the same answer to the text before it.
    """
    answer = script(written)
    if not isinstance(answer, bytes):
        raise ModelError(f"the script returned {answer!r}, which is not bytes", hint='return bytes, such as b" yes"')
    for length in range(min(len(answer), len(written)), 0, -1):
        if written.endswith(answer[:length]) and script(written[:-length]) == answer:
            return answer[length:]
    return answer


def spoken(text: str) -> Script:
    """Script of a fixed text. It continues after the longest suffix of the text so far that occurs in `text`."""
    data = text.encode()

    def script(written: bytes) -> bytes:
        if data.startswith(written[-len(data) :]) and len(written) <= len(data):
            return data[len(written) :]
        for length in range(min(len(written), len(data)), 0, -1):
            at = data.find(written[-length:])
            if at >= 0:
                return data[at + length :]
        return data

    return script
