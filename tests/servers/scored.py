"""A server without a network: any Scorer behind the seam of a Completer, as able as a test wants it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmql_lite.cache.tokens.scores import Scores
from lmql_lite.constraints.language import ANYTHING, Language
from lmql_lite.models.base import (
    Capabilities,
    Completer,
    CompletionRequest,
    Prompt,
    Scored,
    Scorer,
    ScoreRequest,
    ServerUsage,
    StreamPiece,
)
from lmql_lite.models.scripted import Script, ScriptedModel

DEAD = -1


class ScoredCompleter(Completer):
    """Says what the scores say, greedily or drawn under the request's seed; counts what it was asked and said."""

    def __init__(self, scorer: Scorer, **capabilities: Any) -> None:
        self.name = self.place = f"served/{scorer.name}"
        self.requests = 0
        self.said = 0
        self.prompts: list[Prompt] = []
        self.sent: list[CompletionRequest] = []
        self._scorer = scorer
        self.fingerprint = f"served:{scorer.fingerprint}"
        self._endpoint = Capabilities(self.fingerprint, **{"most_rules": 2000} | capabilities)
        vocabulary = scorer.tokenizer.vocabulary
        self._whole = np.array([data is not None and _is_text(data) for data in vocabulary])
        self._whole[list(scorer.tokenizer.eos)] = True

    async def probe(self, known: Capabilities | None = None) -> Capabilities:
        return self._endpoint

    async def score(self, prompt: Prompt, options: Sequence[str]) -> Scored:
        """As servers do: what differs from the tokens of the prompt alone counts."""
        self.requests += 1
        self.prompts.append(prompt)
        begun, tokenizer = "".join(turn.text for turn in prompt).encode(), self._scorer.tokenizer
        sums = []
        for option in options:
            ids = tokenizer.encode(option.encode())
            prefix = tokenizer.bos + tokenizer.encode(begun)
            [rows] = await self._scorer.score([ScoreRequest(prefix, ids[:-1], tuple(range(len(ids))))])
            sums.append(float(sum(row[token] for row, token in zip(rows, ids, strict=True))))
        return Scored(tuple(sums))

    async def stream(self, prompt: Prompt, request: CompletionRequest) -> AsyncGenerator[StreamPiece, None]:
        self.requests += 1
        self.prompts.append(prompt)
        self.sent.append(request)
        tokenizer = self._scorer.tokenizer
        begun = tokenizer.bos + tokenizer.encode("".join(turn.text for turn in prompt).encode())
        ids, text, rule, pushed = begun, b"", 0, request.pushed
        if request.begin:
            pushed = (request.pushed if isinstance(request.pushed, Language) else ANYTHING).begun_by(request.begin)
        for said in range(request.max_tokens):
            [[row]] = await self._scorer.score([ScoreRequest(ids)])
            mask = self._allowed(pushed, rule)
            if request.sampling.temperature > 0:
                token = Scores(row).sample(mask, request.sampling, hash((ids, 17)) & 2**63 - 1)
            else:
                token = Scores(row).best(mask)
            data = None if token is None else tokenizer.vocabulary[token]
            if token is None or token in tokenizer.eos or data is None:
                yield StreamPiece(b"", finish="stop", spent=self._spent(len(begun), said))
                return
            ids, before, text = (*ids, token), len(text), text + data
            rule = _walked(pushed, rule, data)
            self.said += 1
            stopped = min(((at, stop) for stop in request.stops if (at := text.find(stop.encode())) >= 0), default=None)
            if stopped:
                data = text[before : max(stopped[0] + len(stopped[1].encode()), before)]
            yield self._piece(data, token, row)
            if stopped:
                yield StreamPiece(b"", finish="stop", ended_by=stopped[1], spent=self._spent(len(begun), said + 1))
                return
            await asyncio.sleep(0)
        yield StreamPiece(b"", finish="length", spent=self._spent(len(begun), request.max_tokens))

    def _spent(self, prompt: int, said: int) -> ServerUsage:
        return ServerUsage(prompt, 0, said)

    def _piece(self, data: bytes, token: int, row: NDArray[np.float32]) -> StreamPiece:
        """A token with its score and those that might have come."""
        best = [int(each) for each in np.argsort(-row, kind="stable")[: self._endpoint.alternatives + 1]]
        others = ((self._scorer.tokenizer.vocabulary[each] or b"", float(row[each])) for each in best if each != token)
        told = tuple((other, logprob) for other, logprob in others if other and _is_text(other))
        return StreamPiece(data, token, float(row[token]), told)

    def _allowed(self, pushed: object, rule: int) -> NDArray[np.bool_]:
        if not isinstance(pushed, Language):
            return self._whole
        tokenizer, mask = self._scorer.tokenizer, self._whole.copy()
        for token, data in enumerate(tokenizer.vocabulary):
            if mask[token] and data is not None:
                mask[token] = _walked(pushed, rule, data) != DEAD
        mask[list(tokenizer.eos)] = pushed.rules[rule].accepts
        return mask


class ScriptedCompleter(ScoredCompleter):
    """The same over a script; it tells neither scores nor what it cost."""

    def __init__(self, script: str | Script) -> None:
        super().__init__(ScriptedModel(script), stops=4)
        self.name = self.place = "scripted-server"

    def _spent(self, prompt: int, said: int) -> ServerUsage:
        return ServerUsage()

    def _piece(self, data: bytes, token: int, row: NDArray[np.float32]) -> StreamPiece:
        return StreamPiece(data, token)


def _is_text(data: bytes) -> bool:
    """Whether a token is whole characters: nothing else reaches the reader of a stream."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _walked(pushed: object, rule: int, data: bytes) -> int:
    """The rule after whole characters; tokens that end inside one are not used under a language."""
    if not isinstance(pushed, Language):
        return rule
    for character in data.decode():
        code = ord(character)
        rule = next((after for low, high, after in pushed.rules[rule].edges if low <= code <= high), DEAD)
        if rule == DEAD:
            return DEAD
    return rule
