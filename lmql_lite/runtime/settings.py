"""The wishes of one run: what the caller says, else what the query's header says, else the defaults."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from lmql_lite.cache.token_cache import TokenCache
from lmql_lite.errors import InputError, Span
from lmql_lite.program.decoding import (
    BEAMS,
    HOLE_OPTIONS,
    TAKING_THE_BEST,
    Problem,
    clash,
    decoder_named,
    hole_clash,
    hole_option_problem,
    option_problem,
    value_problem,
)
from lmql_lite.runtime.budget import Budget
from lmql_lite.runtime.steps import STEP_BUDGET
from lmql_lite.tokens import Sampling

MAX_TOKENS = 1024
MAX_BACKTRACKS = 64
BEAM_WIDTH = 4
TRACES = (".json", ".lqrun", ".html")


@dataclass(frozen=True, slots=True)
class Settings:
    """None means "not said".

    `cache`: True shares one tree among all runs, False asks the model every time (S7), a `TokenCache` says where what
    models said is kept. `cache_mode`: `rw` reads and writes the file, `ro` only reads it, `refresh` asks the model for
    everything once and puts that in the place of what was known (S4), `replay` never asks the model, `off` is
    `cache=False`. `speculate=False` lets the model score nothing but what a run has come to. `step_budget` bounds the
    ops and tokens of a run together.
    """

    decoder: str | None = None
    n: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    max_backtracks: int | None = None
    step_budget: int | None = None
    cache: bool | TokenCache | None = None
    cache_mode: str | None = None
    speculate: bool | None = None
    max_requests: int | None = None
    max_total_tokens: int | None = None
    max_cost: float | None = None
    prices: tuple[float, float] | None = None
    trace: str | None = None
    """Where what the run tells is written (trace.py); only a caller says that."""

    def over(self, header: Settings) -> Settings:
        """These settings where they say something, the header's where they do not.

        What the header says of drawing, or of how many, goes with its decoder where another one is asked for that
        does not draw, or finds one result. Raises InputError where the two contradict each other.
        """
        mine = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.decoder in TAKING_THE_BEST:
            header = replace(header, temperature=None)
        if self.decoder == "argmax":
            header = replace(header, n=None)
        both = replace(header, **{name: value for name, value in mine.items() if value is not None})
        _raise(clash(both.decoder_name, both.temperature, both.n))
        return both

    @property
    def limit(self) -> int:
        return MAX_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def backtracks(self) -> int:
        return MAX_BACKTRACKS if self.max_backtracks is None else self.max_backtracks

    @property
    def steps(self) -> int:
        """The most ops and tokens of a run."""
        return STEP_BUDGET if self.step_budget is None else self.step_budget

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

    @property
    def decoder_name(self) -> str:
        return self.decoder or ("sample" if self.temperature else "argmax")

    @property
    def has_beams(self) -> bool:
        """Whether hypotheses compete: else each result is a run of its own."""
        return self.decoder_name in BEAMS

    @property
    def results(self) -> int:
        """How many are asked for."""
        return self.n or (BEAM_WIDTH if self.has_beams else 1)

    def sampling(self) -> Sampling:
        """A seed is drawn where none was given, so that every result can be repeated."""
        seed = secrets.randbits(32) if self.seed is None else self.seed
        said = {name: getattr(self, name) for name in _CHOOSING if getattr(self, name) is not None}
        return Sampling(**{"temperature": self._temperature, **said, "seed": seed})

    @property
    def _temperature(self) -> float:
        return 0.0 if self.decoder_name in TAKING_THE_BEST else 1.0

    def at_hole(
        self, hole: str, decoder: str, span: Span, values: Mapping[str, Any], spans: Mapping[str, Span], run: Sampling
    ) -> Sampling:
        """How the tokens of a hole with a decoder of its own are chosen: as that says, and else as in the whole run.

        `values` are its options, `span` and `spans` the places of it and them. Its draws have the run's seed: noise
        depends on the place in the text as well. Raises InputError.
        """
        decoder = decoder_named(decoder)
        for name, value in values.items():
            problem = hole_option_problem(decoder, name)
            _raise(problem or (None if value is None else value_problem(name, value)), spans.get(name))
        _raise(hole_clash(hole, decoder, values.get("temperature"), values.get("n")), span)
        said = {name: value for name, value in values.items() if name != "n" and value is not None}
        if decoder in TAKING_THE_BEST:
            said["temperature"] = 0.0
        elif run.temperature <= 0:
            said.setdefault("temperature", 1.0)
        return replace(run, **said)


_CHOOSING = tuple(name for name in HOLE_OPTIONS if name != "n")


def checked(values: Mapping[str, Any], spans: Mapping[str, Span] | None = None) -> Settings:
    """Settings from values that a user wrote. Raises InputError with the value's place, where it has one."""
    values, spans, trace = dict(values), spans or {}, _trace(values.get("trace"))
    values.pop("trace", None)
    decoder = values.get("decoder")
    for name, value in values.items():
        if value is not None:
            _raise(value_problem(name, value), spans.get(name))
        if name != "decoder":
            _raise(option_problem(decoder or "a run", name), spans.get(name))
    if decoder is not None:
        decoder = decoder_named(decoder)
    cache = _cache(values.get("cache"), spans.get("cache"))
    settings = Settings(**{**values, "decoder": decoder, "cache": cache}, trace=trace)
    if settings.cache_mode in ("ro", "refresh", "replay") and settings.cache is False:
        does = "replaces what is known" if settings.cache_mode == "refresh" else "reads a file"
        raise InputError(
            f"cache_mode={settings.cache_mode!r} {does}, and cache=False knows nothing",
            span=spans.get("cache_mode"),
            hint='name the file: cache="x.tokens"',
        )
    if decoder is not None:
        place = spans.get("temperature") if settings.temperature else spans.get("n")
        _raise(clash(decoder, settings.temperature, settings.n), place)
    return settings


def _raise(problem: Problem | None, span: Span | None = None) -> None:
    if problem is not None:
        raise InputError(problem.sentence, span=span, hint=problem.hint)


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


def _trace(value: object) -> str | None:
    """The name of the file."""
    if value is None:
        return None
    name = os.fspath(value) if isinstance(value, str | os.PathLike) else ""
    if not isinstance(name, str) or os.path.splitext(name)[1].lower() not in TRACES:
        raise InputError(
            f"trace is the name of a file that ends in {', '.join(TRACES[:-1])} or {TRACES[-1]}; this is {value!r}",
            hint="run.json has all calls of the model, run.lqrun can be replayed, run.html is a report to look at",
        )
    return name
