"""A server without a network whose next letter is a function of the text before it, however that came about.

Its tokens are another matter, as on real servers: several letters may be one, and a character may be several, of which
only the last one is heard. So one text has other tokens where a request began elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from zlib import crc32

from lmql_lite.constraints.language import ANYTHING, Language, Rule
from lmql_lite.errors import ModelError
from lmql_lite.models.base import Capabilities, CompletionRequest, Prompt, Scored, ServerUsage, StreamPiece

LETTERS = "aab. \n,0127eée日本😀?-"
WORDS = ("aa", "ab", ". ", "ea", " a", "\n\n", "12", "aab", "日本", "e.", ", ", "1,")
END_OF_TEXT = 0.03
"""Chance of an end at any place."""


class LetteredCompleter:
    """`seed` is its weights. The last `memory` letters decide what comes next."""

    def __init__(
        self,
        seed: int,
        *,
        memory: int = 3,
        alternatives: int = 0,
        stops: int = 0,
        takes_languages: bool = False,
        bills_to_the_end: bool = False,
    ) -> None:
        self.name = f"lettered/{seed}"
        self.requests = 0
        self.said = 0
        self._seed = seed
        self._memory = memory
        self._capabilities = Capabilities(
            f"lettered:{seed}:{memory}",
            alternatives=alternatives,
            stops=stops,
            takes_languages=takes_languages,
            bills_to_the_end=bills_to_the_end,
        )

    @property
    def place(self) -> str:
        return self.name

    async def probe(self, known: Capabilities | None = None) -> Capabilities:
        return self._capabilities

    async def score(self, prompt: Prompt, options: Sequence[str]) -> Scored:
        raise ModelError("it does not score")

    async def stream(self, prompt: Prompt, request: CompletionRequest) -> AsyncGenerator[StreamPiece, None]:
        self.requests += 1
        text = "".join(turn.text for turn in prompt)
        begun, used = len(text), 0
        language = request.pushed if isinstance(request.pushed, Language) else ANYTHING
        if request.begin:
            language = language.begun_by(request.begin)
        rule = language.rules[0]
        while used < request.max_tokens:
            token, after = self._token(text, language, rule)
            cost = 1 if token in WORDS else len(token.encode())  # bytes of a character are tokens
            if not token or used + cost > request.max_tokens:
                used = min(used + cost, request.max_tokens)
                break
            used, rule, text = used + cost, after, text + token
            self.said += cost
            ends = [(at + len(stop), stop) for stop in request.stops if (at := text.find(stop, begun)) >= 0]
            if ends:
                end, stop = min(ends)
                yield StreamPiece(token[: len(token) - (len(text) - end)].encode())
                yield StreamPiece(b"", finish="stop", ended_by=stop, spent=ServerUsage(begun, 0, used))
                return
            yield StreamPiece(token.encode())
            await asyncio.sleep(0)
        finish = "length" if token else "stop"
        yield StreamPiece(b"", finish=finish, spent=ServerUsage(begun, 0, used))

    def _token(self, text: str, language: Language, rule: Rule) -> tuple[str, Rule]:
        """The next token and the rule after it: the longest word that the next letters make; "" at the end."""
        said, best = "", ("", rule)
        while not said or any(word.startswith(said) for word in WORDS):
            letter = self._letter(text + said, language, rule)
            if not letter:
                break
            said, rule = said + letter, _next(language, rule, letter) or rule
            if len(said) == 1 or said in WORDS:
                best = (said, rule)
        return best

    def _letter(self, text: str, language: Language, rule: Rule) -> str:
        """The best letter that may come, "" for end-of-text."""
        before = f"{self._seed}{text[-self._memory :]}|".encode()
        ends = crc32(before) < END_OF_TEXT * 2**32
        if rule.accepts and (ends or not rule.edges):
            return ""
        fit = [letter for letter in LETTERS if _next(language, rule, letter) is not None]
        if not fit:
            return "" if rule.accepts else chr(rule.edges[0][0])
        return min(fit, key=lambda letter: crc32(before + letter.encode()))


def _next(language: Language, rule: Rule, letter: str) -> Rule | None:
    return next((language.rules[after] for low, high, after in rule.edges if low <= ord(letter) <= high), None)
