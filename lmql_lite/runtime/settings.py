"""The wishes of one run: what the caller says, else what the query's header says, else the defaults."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from lmql_lite.cache.token_cache import TokenCache
from lmql_lite.errors import InputError, Span
from lmql_lite.runtime.budget import Budget
from lmql_lite.runtime.decoders import DECODERS
from lmql_lite.tokens import Sampling

MAX_TOKENS = 1024
MAX_BACKTRACKS = 64
CACHE_MODES = ("rw", "ro", "refresh", "replay", "off")


@dataclass(frozen=True, slots=True)
class Settings:
    """None means "not said".

    `cache`: True shares one tree among all runs, False asks the model every time (S7), a `TokenCache` says where what
    models said is kept. `cache_mode`: `rw` reads and writes the file, `ro` only reads it, `refresh` asks the model for
    everything once and puts that in the place of what was known (S4), `replay` never asks the model, `off` is
    `cache=False`. `speculate=False` lets the model score nothing but what a run has come to.
    """

    decoder: str | None = None
    n: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    max_backtracks: int | None = None
    cache: bool | TokenCache | None = None
    cache_mode: str | None = None
    speculate: bool | None = None
    max_requests: int | None = None
    max_total_tokens: int | None = None
    max_cost: float | None = None
    prices: tuple[float, float] | None = None

    def over(self, header: Settings) -> Settings:
        """These settings where they say something, the header's where they do not."""
        mine = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(header, **{name: value for name, value in mine.items() if value is not None})

    @property
    def limit(self) -> int:
        return MAX_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def backtracks(self) -> int:
        return MAX_BACKTRACKS if self.max_backtracks is None else self.max_backtracks

    @property
    def budget(self) -> Budget:
        """What the run may spend with a model behind an API. Raises InputError for a cost that cannot be told."""
        if self.max_cost is not None and self.prices is None:
            raise InputError(
                "max_cost needs prices: no server tells them",
                hint="prices=(0.15, 0.60) are those of a million tokens of prompts and of answers",
            )
        return Budget(self.max_requests, self.max_total_tokens, self.max_cost, self.prices)

    @property
    def is_isolated(self) -> bool:
        """Whether every hole asks the model anew."""
        return self.cache is False or self.cache_mode == "off"

    def sampling(self) -> Sampling:
        """A seed is drawn where none was given, so that every result can be repeated."""
        heat = self.temperature
        if heat is None:
            heat = 1.0 if self.decoder == "sample" else 0.0
        seed = secrets.randbits(32) if self.seed is None else self.seed
        top_p = 1.0 if self.top_p is None else self.top_p
        return Sampling(heat, self.top_k, top_p, self.min_p or 0.0, seed)

    @property
    def decoder_name(self) -> str:
        return self.decoder or ("sample" if self.temperature else "argmax")


_NUMBERS: Mapping[str, tuple[type, float, float, str]] = {
    "n": (int, 1, 1, "only one result is available in this version: n=1"),
    "temperature": (float, 0, 100, "temperature is a number from 0 (argmax) upwards"),
    "top_k": (int, 1, 2**31, "top_k is a whole number of tokens, at least 1"),
    "top_p": (float, 0, 1, "top_p is a share of the probability, from 0 to 1"),
    "min_p": (float, 0, 1, "min_p is a share of the best token's probability, from 0 to 1"),
    "seed": (int, 0, 2**64 - 1, "a seed is a whole number from 0 to 2**64 - 1"),
    "max_requests": (int, 0, 2**31, "max_requests is a whole number, at least 0"),
    "max_total_tokens": (int, 0, 2**63, "max_total_tokens is a whole number, at least 0"),
    "max_cost": (float, 0, 1e12, "max_cost is a sum of money, at least 0"),
    "max_backtracks": (int, 0, 2**31, "max_backtracks is a whole number, at least 0"),
    "max_tokens": (int, 1, 2**31, "max_tokens is a whole number, at least 1"),
}


def checked(values: Mapping[str, Any], spans: Mapping[str, Span] | None = None) -> Settings:
    """Settings from values that a user wrote. Raises InputError with the value's place, where it has one."""
    spans = spans or {}
    for name, value in values.items():
        if value is None:
            continue
        if name in _NUMBERS:
            kind, low, high, sentence = _NUMBERS[name]
            fits = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
            if not fits or not low <= value <= high:
                raise InputError(f"{sentence}; this is {value!r}", span=spans.get(name))
        elif name == "decoder" and value not in DECODERS:
            raise InputError(f"no decoder is called {value!r}", hint=f"there are {' and '.join(DECODERS)}")
        elif name == "prices" and not _are_prices(value):
            raise InputError(
                f"prices are two numbers, of a million tokens of prompts and of answers; this is {value!r}",
                span=spans.get(name),
                hint="for example prices=(0.15, 0.60)",
            )
        elif name == "speculate" and not isinstance(value, bool):
            raise InputError(f"speculate is True or False; this is {value!r}", span=spans.get(name))
        elif name == "cache_mode" and value not in CACHE_MODES:
            raise InputError(
                f"no cache mode is called {value!r}",
                span=spans.get(name),
                hint=f"there are {', '.join(CACHE_MODES[:-1])} and {CACHE_MODES[-1]}",
            )
    settings = Settings(**{**values, "cache": _cache(values.get("cache"), spans.get("cache"))})
    if settings.cache_mode in ("ro", "refresh", "replay") and settings.cache is False:
        does = "replaces what is known" if settings.cache_mode == "refresh" else "reads a file"
        raise InputError(
            f"cache_mode={settings.cache_mode!r} {does}, and cache=False knows nothing",
            span=spans.get("cache_mode"),
            hint='name the file: cache="x.tokens"',
        )
    if settings.decoder == "argmax" and settings.temperature:
        raise InputError(
            "argmax takes the best token and has no temperature",
            span=spans.get("temperature"),
            hint=f"write sample(temperature={settings.temperature})",
        )
    return settings


def _cache(value: object, span: Span | None) -> bool | TokenCache | None:
    """A cache as it was written; the name of a file is a `TokenCache` without further wishes."""
    if value is None or isinstance(value, bool | TokenCache):
        return value
    if not isinstance(value, str | os.PathLike):
        raise InputError(
            f"cache is True, False, the name of a file or a TokenCache; this is {value!r}",
            span=span,
            hint='for example cache="x.tokens"',
        )
    try:
        return TokenCache(value)
    except InputError as error:
        raise InputError(error.message, span=span, hint=error.hint) from None


def _are_prices(value: object) -> bool:
    numbers = value if isinstance(value, tuple | list) else ()
    return len(numbers) == 2 and all(
        isinstance(each, int | float) and not isinstance(each, bool) and each >= 0 for each in numbers
    )
