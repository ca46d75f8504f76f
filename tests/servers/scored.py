"""A server without a network: any Scorer behind the seam of a Completer, as able as a test wants it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

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


class ScoredCompleter:
    """Says what the scores say, greedily or drawn under the request's seed; counts what it was asked and said."""

    def __init__(
        self,
        scorer: Scorer,
        *,
        alternatives: int = 0,
        stops: int = 0,
        takes_languages: bool = False,
        most_rules: int = 2000,
        chat_only: bool = False,
        continues_turns: bool = True,
        scores: bool = False,
    ) -> None:
        self.name = self.place = f"served/{scorer.name}"
        self.requests = 0
        self.said = 0
        self.prompts: list[Prompt] = []
        self.sent: list[CompletionRequest] = []
        self._scorer = scorer
        self._endpoint = Capabilities(
            f"served:{scorer.fingerprint}",
            alternatives=alternatives,
            stops=stops,
            takes_languages=takes_languages,
            most_rules=most_rules,
            chat_only=chat_only,
            continues_turns=continues_turns,
            scores=scores,
        )

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
        tokenizer, tree_hash = self._scorer.tokenizer, 17
        begun = "".join(turn.text for turn in prompt).encode()
        ids = tokenizer.bos + tokenizer.encode(begun)
        text, rule, pushed = b"", 0, request.pushed
        if request.begin:
            pushed = (request.pushed if isinstance(request.pushed, Language) else ANYTHING).begun_by(request.begin)
        for said in range(request.max_tokens):
            [[row]] = await self._scorer.score([ScoreRequest(ids)])
            mask = self._allowed(pushed, rule)
            if request.sampling.temperature > 0:
                token = Scores(row).sample(mask, request.sampling, hash((ids, tree_hash)) & 2**63 - 1)
            else:
                token = Scores(row).best(mask)
            data = None if token is None else tokenizer.vocabulary[token]
            if token is None or token in tokenizer.eos or data is None:
                yield StreamPiece(b"", finish="stop", spent=ServerUsage(len(ids) - said, 0, said))
                return
            ids, before, text = (*ids, token), len(text), text + data
            rule = _walked(pushed, rule, data)
            self.said += 1
            stopped = sorted((at, stop) for stop in request.stops if (at := text.find(stop.encode(), 0)) >= 0)
            if stopped:
                at, stop = stopped[0]
                data = text[before : max(at + len(stop.encode()), before)]
            yield StreamPiece(data, token, float(row[token]), self._others(row, token))
            if stopped:
                yield StreamPiece(
                    b"", finish="stop", ended_by=stop, spent=ServerUsage(len(ids) - said - 1, 0, said + 1)
                )
                return
            await asyncio.sleep(0)
        yield StreamPiece(b"", finish="length", spent=ServerUsage(len(ids) - request.max_tokens, 0, request.max_tokens))

    def _others(self, row: NDArray[np.float32], token: int) -> tuple[tuple[bytes, float], ...]:
        best = [int(each) for each in np.argsort(-row, kind="stable")[: self._endpoint.alternatives + 1]]
        vocabulary = self._scorer.tokenizer.vocabulary
        told = [(vocabulary[each] or b"", float(row[each])) for each in best if each != token]
        return tuple((data, logprob) for data, logprob in told if data and _is_text(data))

    def _allowed(self, pushed: object, rule: int) -> NDArray[np.bool_]:
        tokenizer = self._scorer.tokenizer
        mask = np.array([data is not None and _is_text(data) for data in tokenizer.vocabulary])
        mask[list(tokenizer.eos)] = True
        if isinstance(pushed, Language):
            for token, data in enumerate(tokenizer.vocabulary):
                if mask[token] and data is not None:
                    mask[token] = _walked(pushed, rule, data) != DEAD
            mask[list(tokenizer.eos)] = pushed.rules[rule].accepts
        return mask


class ScriptedCompleter(Completer):
    """A Completer over the same scripts: token by token, with `stops` and `max_tokens` as on servers."""

    name = place = "scripted-server"

    def __init__(self, script: str | Script) -> None:
        model = ScriptedModel(script)
        self.script, self.fingerprint, self._tokenizer = model.script, model.fingerprint, model.tokenizer
        self.requests = 0

    async def probe(self, known: Capabilities | None = None) -> Capabilities:
        return Capabilities(self.fingerprint, stops=4)

    async def stream(self, prompt: Prompt, request: CompletionRequest) -> AsyncGenerator[StreamPiece, None]:
        self.requests += 1
        written = b""
        begun = "".join(turn.text for turn in prompt).encode()
        for _ in range(request.max_tokens):
            wanted = self.script(begun + written)
            if not wanted:
                yield StreamPiece(b"", finish="stop")
                return
            token = self._tokenizer.first(wanted)
            data = self._tokenizer.vocabulary[token] or b""
            stopped = sorted((at, stop) for stop in request.stops if (at := (written + data).find(stop.encode())) >= 0)
            if stopped:
                at, stop = stopped[0]
                yield StreamPiece((written + data)[len(written) : at + len(stop.encode())], token)
                yield StreamPiece(b"", finish="stop", ended_by=stop)
                return
            written += data
            yield StreamPiece(data, token)
            await asyncio.sleep(0)
        yield StreamPiece(b"", finish="length")


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
