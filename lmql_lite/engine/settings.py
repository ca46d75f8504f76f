"""Settings of one run: the caller's options, then those of the query's header, then the defaults."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from lmql_lite.cache.kv.blocks import EXACT, BlockPolicy
from lmql_lite.cache.tokens.trees import TokenCache
from lmql_lite.engine.budget import STEP_BUDGET, Budget
from lmql_lite.engine.environment import Environment, evaluate, execute
from lmql_lite.errors import BudgetError, CacheError, InputError, Span
from lmql_lite.options import (
    AT_HOLE,
    DECODERS,
    OPTIONS,
    STEERED,
    Problem,
    Sampling,
    clash,
    decoder_named,
    distorting,
    hole_clash,
    option_problem,
    value_problem,
)
from lmql_lite.program.ops import Program

MAX_TOKENS = 1024
MAX_BACKTRACKS = 64
MAX_HOLE_REQUESTS = 32
BEAM_WIDTH = 4
TRACES = (".json", ".lqrun", ".html")
OF_A_QUERY = tuple(name for name, row in OPTIONS.items() if row.scope == "query")


class Settings:
    """Immutable settings, made by `checked`. `given` are the options by name; the attributes add the defaults."""

    def __init__(self, given: Mapping[str, Any], notices: tuple[str, ...] = ()) -> None:
        self.given = given
        self.notices = notices
        """Sentences about ignored options."""
        self.decoder: str | None = given.get("decoder")
        self.decoder_name = self.decoder or ("sample" if given.get("temperature") else "argmax")
        self.has_beams = DECODERS[self.decoder_name].branches
        """True if branches compete; else each result is a run of its own."""
        self.weighs = DECODERS[self.decoder_name].weighs
        """True if branches have weights, and one is drawn (S36)."""
        self.results: int = given.get("n") or (BEAM_WIDTH if self.has_beams and not self.weighs else 1)
        """Requested number of results."""
        self.cache: bool | TokenCache | None = given.get("cache")
        """True for a tree that all runs share, False to ask the model every time (S7), a `TokenCache` for a file."""
        self.cache_mode: str | None = given.get("cache_mode")
        """"refresh" asks the model for everything once and replaces the known entries (S4)."""
        self.use_caches = given.get("use_caches") is not False
        """False if a local model computes the prompt of every hole anew, too (S7)."""
        self.is_isolated = self.cache is False or self.cache_mode == "off" or not self.use_caches
        """True if every hole asks the model anew."""
        self.speculate = given.get("speculate") is not False
        self.trace: str | None = given.get("trace")
        """Name of the trace file; only a caller sets it."""
        self.prefill: tuple[tuple[str, str], ...] = given.get("prefill", ())
        """Names and texts of the first holes, in the order in which they open. The model continues the last text,
        unless its name is ""."""
        self.limit: int = given.get("max_tokens", MAX_TOKENS)
        """Maximum tokens of a hole."""
        self.backtracks: int = given.get("max_backtracks", MAX_BACKTRACKS)
        self.tells = given.get("tell_answers") is not False
        """True if a sentence may list the allowed answers for the model of a chat."""
        self.hole_requests: int = given.get("max_hole_requests", MAX_HOLE_REQUESTS)
        """Maximum requests of a hole to a server."""
        self.steps: int = given.get("step_budget", STEP_BUDGET)
        """Maximum parts of prompts and tokens of a run together."""
        self.blocks: str = given.get("blocks", EXACT)
        """Policy for the reuse of marked blocks of a prompt."""

    def over(self, header: Settings) -> Settings:
        """These settings, completed by those of the header.

        Temperature and n of the header belong to its decoder, so another decoder that does not draw or has one result
        drops them. `use_caches=False` drops the header's caches. Raises InputError if the two contradict each other.
        """
        below = dict(header.given)
        if self.decoder is not None:
            row = DECODERS[self.decoder]
            if not row.draws:
                below.pop("temperature", None)
                if not row.branches:
                    below.pop("n", None)
        if self.given.get("use_caches") is False:
            below = {name: value for name, value in below.items() if name not in _OF_CACHES}
        both = Settings({**below, **self.given}, (*header.notices, *self.notices))
        if not both.use_caches:
            _require_no_cache(both.given)
        _raise(clash(both.decoder_name, both.given))
        return both

    def changed(self, options: Mapping[str, Any]) -> Settings:
        """These settings with other options; None removes one."""
        both = {**self.given, **options}
        return Settings({name: value for name, value in both.items() if value is not None}, self.notices)

    def without_caches(self) -> Settings:
        """These settings for a model whose `use_caches` is False. Raises InputError if they ask for reuse."""
        changed = self.changed({"use_caches": False})
        _require_no_cache(changed.given)
        return changed

    def of_query(self, own: Settings, seed: int) -> Settings:
        """Settings of a query that a query with these settings calls.

        The called query's limits on holes and its decoder count. The number of branches and all options of the whole
        run are the caller's.
        """
        if self.weighs and own.decoder not in (None, self.decoder):
            sentence = f"{self.decoder} weighs every choice, but a query that is called has the decoder {own.decoder}"
            raise InputError(sentence, hint=f"leave {own.decoder} out of its header")
        given = {name: own.given[name] for name in OF_A_QUERY if name in own.given}
        if own.decoder in ("argmax", "sample"):
            given |= {name: own.given.get(name) for name in ("decoder", *AT_HOLE) if name != "n"}
        return self.changed({**given, "seed": seed})

    @property
    def budget(self) -> Budget:
        """Limits on requests, tokens and cost at a server. Raises InputError for `max_cost` without prices."""
        given = self.given
        if "max_cost" in given and "prices" not in given:
            raise InputError(
                "max_cost needs prices, which no server reports",
                hint="add prices of a million prompt tokens and answer tokens, such as prices=(0.15, 0.60)",
            )
        return Budget(
            given.get("max_requests"), given.get("max_total_tokens"), given.get("max_cost"), given.get("prices")
        )

    def sampling(self) -> Sampling:
        """Sampling of the run. Without a seed a random one is drawn, so that every result can be repeated."""
        seed = self.given.get("seed")
        temperature = 1.0 if DECODERS[self.decoder_name].draws else 0.0
        given = {name: self.given[name] for name in _SAMPLING if name in self.given}
        return Sampling(**{"temperature": temperature, **given, "seed": secrets.randbits(32) if seed is None else seed})

    def at_hole(
        self, hole: str, decoder: str, span: Span, values: Mapping[str, Any], spans: Mapping[str, Span], run: Sampling
    ) -> Sampling:
        """Sampling in a hole with a decoder of its own: its options, completed by those of the run.

        `values` are the hole's options; `span` and `spans` are the places of the decoder and the options. Draws use the
        run's seed, since noise also depends on the place in the text. Raises InputError.
        """
        decoder = decoder_named(decoder)
        if self.weighs:
            sentence = f"{self.decoder} weighs every choice, but [{hole}] has a decoder of its own"
            raise InputError(sentence, span=span, hint=f"leave {decoder} out of the hole")
        for name, value in values.items():
            problem = option_problem(name, decoder, at_hole=True)
            _raise(problem or (None if value is None else value_problem(name, value)), spans.get(name))
        _raise(hole_clash(hole, decoder, values), span)
        given = {name: values[name] for name in _SAMPLING if values.get(name) is not None}
        if not DECODERS[decoder].draws:
            given["temperature"] = 0.0
        elif run.temperature <= 0:
            given.setdefault("temperature", 1.0)
        return replace(run, **given)


_SAMPLING = tuple(field.name for field in fields(Sampling) if field.name in AT_HOLE)


async def header(program: Program, environment: Environment) -> Settings:
    """Settings of a query's header, after its prologue has run. Raises InputError, at the place of a wrong option."""
    for let in program.prologue:
        try:
            await execute(let.code, environment)
        except BudgetError as error:  # from an endless loop
            error.span = error.span or let.span
            raise
    values = {option.name: await evaluate(option.value, environment) for option in program.options}
    return checked({"decoder": program.decoder, **values}, {option.name: option.span for option in program.options})


def checked(values: Mapping[str, Any], spans: Mapping[str, Span] | None = None) -> Settings:
    """Settings from a user's options. Raises InputError, with the place of a wrong option if it is known."""
    spans, given = spans or {}, {name: value for name, value in values.items() if value is not None}
    left_out = [name for name in given if name in STEERED]
    notices = tuple(f"the option {name} is ignored: it changed no answer" for name in left_out)
    given = {name: value for name, value in given.items() if name not in left_out}
    trace = _trace(given.pop("trace")) if "trace" in given else None
    decoder = given.get("decoder")
    for name, value in given.items():
        _raise(value_problem(name, value), spans.get(name))
    for name in values.keys() - {"decoder", "trace", "prefill"}:
        _raise(option_problem(name, decoder), spans.get(name))
    if decoder is not None:
        given["decoder"] = decoder = decoder_named(decoder)
        place = spans.get("temperature") if given.get("temperature") else spans.get("n")
        _raise(clash(decoder, given), spans.get(distorting(given)) if DECODERS[decoder].weighs else place)
    if "blocks" in given:
        given["blocks"] = _blocks(given["blocks"], spans.get("blocks"))
    if "prefill" in given:
        given["prefill"] = _prefill(given["prefill"])
    if "cache" in given:
        given["cache"] = _cache(given["cache"], spans.get("cache"))
    if given.get("use_caches") is False:
        _require_no_cache(given, spans)
    mode = given.get("cache_mode")
    if mode in ("ro", "refresh", "replay") and given.get("cache") is False:
        raise InputError(
            f"cache_mode={mode!r} needs a cache file, but cache=False disables the cache",
            span=spans.get("cache_mode"),
            hint='name a file: cache="x.tokens"',
        )
    return Settings(given if trace is None else {**given, "trace": trace}, notices)


_OF_CACHES = {"cache": False, "cache_mode": "off", "blocks": EXACT}
"""Options of caches, and the value of each that reuses nothing."""


def _require_no_cache(given: Mapping[str, Any], spans: Mapping[str, Span] | None = None) -> None:
    """Raises InputError for an option that asks for reuse beside `use_caches=False`."""
    for name, none in _OF_CACHES.items():
        if name in given and given[name] != none:
            value = given[name].path if isinstance(given[name], TokenCache) else given[name]
            raise InputError(
                f"use_caches=False computes everything anew, which {name}={value!r} contradicts",
                span=(spans or {}).get(name),
                hint=f"leave {name}= out, or use_caches=",
            )


def _raise(problem: Problem | None, span: Span | None = None) -> None:
    if problem is not None:
        raise InputError(problem.sentence, span=span, hint=problem.hint)


def _blocks(value: object, span: Span | None) -> str:
    """A policy for blocks in its full form. Raises InputError for an unknown one."""
    try:
        return str(BlockPolicy.parse(value if isinstance(value, str) else repr(value)))
    except CacheError as error:
        raise InputError(error.message, span=span, hint=error.hint) from None


def _prefill(value: object) -> tuple[tuple[str, str], ...]:
    """The pairs of `prefill`. Raises InputError for any other value."""
    pairs: list[tuple[str, str]] = []
    for pair in value if isinstance(value, list | tuple) else [value]:
        match pair:
            case [str(hole), str(text)]:
                pairs.append((hole, text))
            case _:
                hint = 'for example prefill=[("ANSWER", " Par")]'
                raise InputError(f"prefill is {OPTIONS['prefill'].noun}; this is {value!r}", hint=hint)
    return tuple(pairs)


def _cache(value: object, span: Span | None) -> bool | TokenCache:
    """The `cache` option; the name of a file becomes a `TokenCache` with its defaults."""
    if isinstance(value, bool | TokenCache):
        return value
    if not isinstance(value, str | os.PathLike):
        raise InputError(
            f"cache is {OPTIONS['cache'].noun}; this is {value!r}", span=span, hint='for example cache="x.tokens"'
        )
    try:
        return TokenCache(value)
    except InputError as error:
        raise InputError(error.message, span=span, hint=error.hint) from None


def _trace(value: object) -> str:
    """The name of the trace file. Raises InputError for any other value."""
    name = os.fspath(value) if isinstance(value, str | os.PathLike) else ""
    if not isinstance(name, str) or os.path.splitext(name)[1].lower() not in TRACES:
        raise InputError(
            f"trace is the name of a file that ends in {', '.join(TRACES[:-1])} or {TRACES[-1]}; this is {value!r}",
            hint="use run.json for all calls of the model, run.lqrun for the playground, or run.html for a report",
        )
    return name
