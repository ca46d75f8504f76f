"""What speaks behind the stub of an API: any Scorer, token by token, masked and drawn from as servers do it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper, grammar_from
from numpy.typing import NDArray

from lmql_lite.models.base import Scorer, ScoreRequest
from lmql_lite.models.scripted import ScriptedModel

Row = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Generated:
    """One token. `data` is None for end-of-text; `row` are the raw log-probabilities, None where nobody needs them."""

    token: int
    data: bytes | None
    row: Row | None


@dataclass(frozen=True, slots=True)
class Policy:
    temperature: float = 0.0
    seed: int = 0
    top_k: int = 0
    top_p: float = 1.0
    bias: Mapping[int, float] | None = None
    grammar: str | None = None
    """GBNF, or JSON Schema as JSON text with `is_schema`."""
    is_schema: bool = False
    rows: bool = True


class Voice:
    """A Scorer that speaks."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer
        self.tokenizer = scorer.tokenizer
        self._texts: LLTokenizer | None = None

    def encode(self, text: str) -> tuple[int, ...]:
        return (*self.tokenizer.bos, *self.tokenizer.encode(text.encode()))

    def data(self, token: int) -> bytes | None:
        return self.tokenizer.vocabulary[token]

    async def speak(self, ids: Sequence[int], policy: Policy) -> AsyncIterator[Generated]:
        """Endless but for end-of-text, which is the last token. Raises ValueError for a grammar that cannot be read."""
        path = list(ids)
        held = self._held(policy) if policy.grammar is not None else None
        rng = np.random.default_rng(policy.seed)
        script = self.scorer if isinstance(self.scorer, ScriptedModel) else None
        is_plain = script is not None and held is None and not policy.bias and not policy.temperature
        while True:
            if is_plain and not policy.rows and script is not None:
                wanted = script.script(script.tokenizer.decode(path))
                said = Generated(script.tokenizer.first(wanted) if wanted else 1, None, None)
                said = Generated(said.token, self.data(said.token) if wanted else None, None)
            else:
                ((row,),) = await self.scorer.score([ScoreRequest(tuple(path))])
                token = self._pick(row, policy, held, rng)
                said = Generated(token, None if token in self.tokenizer.eos else self.data(token), row)
            yield said
            if said.data is None:
                return
            if held is not None:
                held.consume_token(said.token)
            path.append(said.token)

    async def rows(self, ids: Sequence[int]) -> list[float | None]:
        """The log-probability of each token of a text after those before it; the first one has none."""
        ((*scores,),) = await self.scorer.score([ScoreRequest((), tuple(ids), tuple(range(1, len(ids))))])
        return [None, *(float(row[token]) for row, token in zip(scores, ids[1:], strict=True))]

    def best(self, row: Row, count: int) -> list[tuple[int, float]]:
        order = np.argsort(-row, kind="stable")[:count]
        return [(int(token), float(row[token])) for token in order]

    def _pick(self, row: Row, policy: Policy, held: LLMatcher | None, rng: np.random.Generator) -> int:
        scores = row.astype(np.float64)
        for token, bias in (policy.bias or {}).items():
            scores[token] += -np.inf if bias <= -100 else bias
        if held is not None:
            bits = np.unpackbits(np.frombuffer(held.compute_bitmask(), np.uint8), count=len(row), bitorder="little")
            scores[bits == 0] = -np.inf
        if not policy.temperature:
            return int(np.argmax(scores))
        scores /= policy.temperature
        order = np.argsort(-scores, kind="stable")
        if policy.top_k > 0:
            order = order[: policy.top_k]
        chances = np.exp(scores[order] - scores[order[0]])
        chances /= chances.sum()
        kept = np.searchsorted(np.cumsum(chances), policy.top_p) + 1
        chances = chances[:kept] / chances[:kept].sum()
        return int(rng.choice(order[: len(chances)], p=chances))

    def _held(self, policy: Policy) -> LLMatcher:
        if self._texts is None:
            self._texts = LLTokenizer(TokenizerWrapper(_Vocabulary(self)))
        text = policy.grammar or ""
        grammar = grammar_from("json_schema" if policy.is_schema else "grammar", text)
        if policy.is_schema:
            json.loads(text)
        matcher = LLMatcher(self._texts, grammar, log_level=0)
        if matcher.is_error():
            raise ValueError(f"the grammar cannot be read: {matcher.get_error()}")
        return matcher


class _Vocabulary:
    """What llguidance asks of a tokenizer."""

    bos_token_id = None

    def __init__(self, voice: Voice) -> None:
        vocabulary = voice.tokenizer.vocabulary
        self.eos_token_id = min(voice.tokenizer.eos)
        self.tokens = [data or b"" for data in vocabulary]
        self.special_token_ids = [token for token, data in enumerate(vocabulary) if data is None]
        self._encode = voice.tokenizer.encode

    def __call__(self, data: bytes) -> list[int]:
        return list(self._encode(data))
