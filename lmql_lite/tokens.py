"""Tokens: what a tokenizer offers, how a token may be drawn, and what is remembered of each one in a result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

Source = Literal["prompt", "cache", "model", "draft", "forced"]
"""Who said a token: the program's text, a fact known before this run, the model, an accepted guess, a constraint."""

Role = Literal["system", "user", "assistant"]
"""Whose turn it is in a chat."""

Fate = Literal["kept", "cut", "removed", "rejected", "pruned"]
"""What became of a token. Only `kept` ones stand in the result's prompt."""


class Tokenizer(Protocol):
    """Text to tokens and back, for one model. Immutable, so that threads may share it."""

    @property
    def vocabulary(self) -> tuple[bytes | None, ...]:
        """The bytes of every token id; None for special, unused and padding ids."""
        ...

    @property
    def bos(self) -> tuple[int, ...]:
        """The ids that stand before every text; () where the model wants none."""
        ...

    @property
    def eos(self) -> frozenset[int]:
        """The ids that mean end-of-text."""
        ...

    def encode(self, text: bytes) -> tuple[int, ...]:
        """The canonical tokens of a text, and nothing else: no bos, no added space.

        Spellings of special tokens are ordinary characters here (S12). Any bytes are taken, also a text that begins
        or ends inside a character; joining the tokens' bytes gives the text back.
        """
        ...


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is chosen from scores. Read in this order: penalties, mask, temperature, top_k, top_p, min_p, choice
    (S2).

    `temperature` 0 is argmax; top_k, top_p and min_p are then without effect. `seed` and `index` make a draw
    repeatable: its noise is a pure function of them, the path and the token (S3).

    A raw log-probability is multiplied with `repetition_penalty` where the token stands anywhere in the text so far,
    as Hugging Face counts it. `frequency_penalty` times as often as the token was said in holes of this run,
    and `presence_penalty` where it was said there at all, are then taken from it, as OpenAI counts them.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    index: int = 0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0

    @property
    def penalises(self) -> bool:
        """Whether what was said before changes what is chosen."""
        return self.repetition_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a finished run.

    `hole` is the name of the hole it was chosen for, None for the program's own text. A token that begins in the text
    before its hole is one of the hole's `TOKENS` as well (S15). `logprob` is the raw natural log-probability that the
    model gave it, None where the model was not asked.
    """

    id: int
    data: bytes
    hole: str | None
    source: Source
    fate: Fate
    logprob: float | None

    @property
    def text(self) -> str:
        """The token as text; bytes that are no whole character are shown as U+FFFD."""
        return self.data.decode("utf-8", "replace")
