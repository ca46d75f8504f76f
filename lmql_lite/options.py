"""Options and decoders of a run: one table, read by the language, the engine, the command line, the playground and the
documentation (`docs/language.md`).

An option is added by one line of `HeaderOptions`; one that shapes how a token is chosen is a field of `Sampling` as
well. A decoder is added by one line of `DECODERS`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal, NamedTuple, TypedDict, get_args, get_type_hints

from lmql_lite.errors import did_you_mean

# Options ---------------------------------------------------------------------------------------------------------

Scope = Literal["call", "run", "query", "hole"]
"""Scope of an option: only the caller, the whole run, the holes of one query, or a single hole.

A header and a call take options of a run, a query and a hole; `[sample(...) X]` takes those of a hole.
"""


class Problem(NamedTuple):
    """Sentence that says what is wrong, and a hint."""

    sentence: str
    hint: str | None


@dataclass(frozen=True, slots=True)
class OptionRow:
    """One row of the table. `name` and `type` are those of its line in `HeaderOptions`.

    `low` and `high` bound a number. `choices` are the allowed strings. `noun` describes the values of any other type.
    `flag` is the metavar of the command-line flag: "" for a switch that turns the option off, None for no flag.
    `on_page`: the playground's form shows the option. `decoders` are those that accept it, () for all.
    """

    help: str
    scope: Scope = "run"
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    noun: str = ""
    flag: str | None = None
    on_page: bool = False
    decoders: tuple[str, ...] = ()
    name: str = ""
    type: Any = None

    @property
    def values(self) -> str:
        """The allowed values, as a noun phrase."""
        if self.choices:
            return f"one of {', '.join(self.choices[:-1])} or {self.choices[-1]}"
        if self.noun or self.low is None:
            return self.noun
        noun = "a whole number" if self.type is int else "a number"
        return f"{noun}, at least {self.low}" if self.high is None else f"{noun} from {self.low} to {self.high}"

    def problem(self, value: Any) -> Problem | None:
        """The problem with a value, None for a valid one. Models and files check the rest when they are used."""
        fits = True
        if self.choices:
            fits = value in self.choices
        elif self.type is bool:
            fits = isinstance(value, bool)
        elif self.name == "prices":
            fits = isinstance(value, tuple | list) and len(value) in (2, 3) and all(map(self._holds, value))
        elif self.low is not None:
            fits = self._holds(value)
        hint = "for example prices=(0.15, 0.60)" if self.name == "prices" else None
        return None if fits else Problem(f"{self.name} is {self.values}; this is {value!r}", hint)

    def _holds(self, number: Any) -> bool:
        known = isinstance(number, int if self.type is int else int | float) and not isinstance(number, bool)
        return known and number >= (self.low or 0) and (self.high is None or number <= self.high)


# Decoders --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DecoderRow:
    """One decoder; `engine/decode/` has a file of its name.

    `draws`: tokens are sampled. `branches`: several branches of a run compete, and `n` of them are kept. `weighs`: the
    branches have weights, and one of them is drawn (S36). `options` are those that only this decoder has.
    """

    help: str
    draws: bool = False
    branches: bool = False
    weighs: bool = False
    options: Mapping[str, OptionRow] = field(default_factory=dict)


DECODERS: Mapping[str, DecoderRow] = {
    "argmax": DecoderRow("the most likely token each time"),
    "sample": DecoderRow("draws each token; `n` results are `n` runs, each with a seed of its own", draws=True),
    "beam": DecoderRow("keeps the `n` most likely branches of the whole run", branches=True),
    "beam_search": DecoderRow("another name of beam", branches=True),
    "beam_sample": DecoderRow("draws the `n` branches that are kept", draws=True, branches=True),
    "best_k": DecoderRow(
        "continues the `k` most likely branches, wherever they are; the others wait",
        branches=True,
        options={
            "k": OptionRow("Number of branches that continue at a time (default: 2).", low=1, type=int),
            "budget": OptionRow("Number of tokens asked for while branches wait (default: 256).", low=0, type=int),
        },
    ),
    "var": DecoderRow(
        "`b` branches compete within each hole, the `n` best values of it go on",
        branches=True,
        options={"b": OptionRow("Number of branches within a hole, at least `n` (default: 2).", low=1, type=int)},
    ),
    "beam_var": DecoderRow(
        "beams that compete within the same hole only, by their score per token",
        branches=True,
        options={
            "alpha": OptionRow(
                "0 compares sums of log-probabilities, 1 their means (default: 0.7).", low=0, high=1, type=float
            )
        },
    ),
    "smc": DecoderRow(
        "draws a text from the model's own distribution given the conditions, with the weights of others",
        draws=True,
        branches=True,
        weighs=True,
        options={
            "particles": OptionRow(
                "Number of different texts that are kept at a time (default: 16).", low=2, high=256, type=int
            )
        },
    ),
}
ALIASES: Mapping[str, str] = {"beam_search": "beam"}
"""Second names of decoders, and the first ones."""

NEAREST: Mapping[str, str] = {
    "bsseq": "beam(n=...) is nearest: its branches may be of different lengths",
    "incontext": "argmax is nearest: it reads nothing but the prompt",
}
"""Decoders of LMQL that this version does not have, and the nearest one."""


def decoder_named(name: str) -> str:
    """The decoder's own name: `beam_search` is `beam`, and case does not matter."""
    return ALIASES.get(name.lower(), name.lower())


# Rows of the table ------------------------------------------------------------------------------------------------
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


class HeaderOptions(TypedDict, total=False):
    """Options that a header and a call accept, each with its type and its row. None has no effect."""

    temperature: Annotated[
        float | None,
        OptionRow("Divides the scores before a draw; 0 is argmax.", "hole", 0, 100, on_page=True, flag="T"),
    ]
    top_k: Annotated[int | None, OptionRow("Draws among the k most likely tokens.", "hole", 1, 2**31, on_page=True)]
    top_p: Annotated[
        float | None,
        OptionRow("Draws among the most likely tokens that sum to this share.", "hole", 0, 1, on_page=True),
    ]
    min_p: Annotated[
        float | None,
        OptionRow("Draws among tokens with at least this share of the best one's probability.", "hole", 0, 1),
    ]
    typical_p: Annotated[
        float | None, OptionRow("Draws among tokens of typical surprise that sum to this share.", "hole", 0, 1)
    ]
    repetition_penalty: Annotated[
        float | None,
        OptionRow("Multiplies log-probabilities of tokens in the text; 1 has no effect.", "hole", 0.01, 100),
    ]
    frequency_penalty: Annotated[
        float | None, OptionRow("Lowers a token for each time it was generated; 0 has no effect.", "hole", -2, 2)
    ]
    presence_penalty: Annotated[
        float | None, OptionRow("Lowers the score of each token that was generated; 0 has no effect.", "hole", -2, 2)
    ]
    effort: Annotated[
        str | None, OptionRow("How long a reasoning model on a server thinks.", "hole", choices=_EFFORTS, flag="LEVEL")
    ]
    seed: Annotated[
        int | None,
        OptionRow(
            "Makes draws repeatable; every result names its seed.", low=0, high=2**64 - 1, flag="N", on_page=True
        ),
    ]
    max_tokens: Annotated[
        int | None, OptionRow("Token limit of a hole (default: 1024).", "query", 1, 2**31, flag="N", on_page=True)
    ]
    max_backtracks: Annotated[
        int | None, OptionRow("Limit of values of a hole that Python may reject (default: 64).", "query", 0, 2**31)
    ]
    step_budget: Annotated[int | None, OptionRow("Limit of prompts and tokens of a run together.", low=1)]
    cache_mode: Annotated[
        str | None,
        OptionRow(
            "ro only reads the file; refresh asks the model again and replaces what is known; replay never asks it.",
            choices=("rw", "ro", "refresh", "replay", "off"),
            flag="MODE",
            on_page=True,
        ),
    ]
    use_caches: Annotated[
        bool | None,
        OptionRow("Reuse of what was computed for other holes, runs and rows.", noun="True or False", flag=""),
    ]
    speculate: Annotated[
        bool | None,
        OptionRow(
            "Predicts what comes next, to save time; results do not change.",
            noun="True or False",
            flag="",
            on_page=True,
        ),
    ]
    blocks: Annotated[
        str | None,
        OptionRow(
            "Reuses {block(text)} at any place: exact, rotate, blend(0.15) or smash.", noun="a policy", flag="POLICY"
        ),
    ]
    tell_answers: Annotated[
        bool | None,
        OptionRow(
            "A sentence that tells a chat model which answers are allowed, where it is needed.",
            noun="True or False",
            flag="",
        ),
    ]
    max_hole_requests: Annotated[int | None, OptionRow("Request limit of a hole (default: 32).", low=1, flag="N")]
    max_requests: Annotated[
        int | None, OptionRow("Limit of a run's requests to servers.", low=0, high=2**31, flag="N", on_page=True)
    ]
    max_total_tokens: Annotated[
        int | None, OptionRow("Limit of tokens of a server's prompts and answers.", low=0, flag="N", on_page=True)
    ]
    max_cost: Annotated[float | None, OptionRow("Cost limit of a run; needs prices.", low=0, flag="SUM")]
    prices: Annotated[
        tuple[float, ...] | None,
        OptionRow("Prices of a million tokens.", low=0, noun="two or three numbers", flag="IN,OUT"),
    ]


_ELSEWHERE: Mapping[str, OptionRow] = {
    "n": OptionRow("Number of results.", "hole", 1, 1024, on_page=True, type=int, flag="N"),
    "decoder": OptionRow(
        "The decoder; in a header it is the first word.", "call", noun="a name", on_page=True, flag="NAME"
    ),
    "model": OptionRow(
        "`demo`, `smol`, `local:NAME_OR_PATH`, `openai/NAME`, or a model object.", "call", noun="a model", on_page=True
    ),
    "cache": OptionRow(
        "off asks the model again; a file (x.tokens) keeps its answers.",
        noun="True, False, the name of a file or a TokenCache",
        flag="on|off|FILE",
    ),
    "trace": OptionRow(
        "Writes every call of the model (x.json), its events (x.lqrun) or a report (x.html).",
        "call",
        noun="the name of a file",
        flag="FILE",
    ),
    "session": OptionRow("Shares models and trees with other runs of the session.", "call", noun="a Session"),
    "prefill": OptionRow("Texts of the first holes; the last one is continued.", "call", noun="pairs (hole, text)"),
}
"""Options whose types belong to upper floors: `api.RunOptions` and `api.Options` declare them."""


def _table() -> Mapping[str, OptionRow]:
    rows = dict(_ELSEWHERE)
    for name, hint in get_type_hints(HeaderOptions, include_extras=True).items():
        union, row = get_args(hint)
        rows[name] = replace(row, type=get_args(union)[0])
    for decoder, of_decoder in DECODERS.items():
        rows |= {name: replace(row, decoders=(decoder,)) for name, row in of_decoder.options.items()}
    return {name: replace(row, name=name) for name, row in rows.items()}


OPTIONS = _table()
"""All options of a run."""
IN_HEADER = tuple(name for name, row in OPTIONS.items() if row.scope != "call")
AT_HOLE = tuple(name for name, row in OPTIONS.items() if row.scope == "hole")


def option_problem(name: str, decoder: str | None, *, at_hole: bool = False) -> Problem | None:
    """The problem with this name of an option in a header, or in the decoder of one hole; None for a valid one."""
    known = AT_HOLE if at_hole else IN_HEADER
    row = OPTIONS.get(name)
    if name in STEERED:
        return None
    if name not in known:
        if name == "max_tokens":
            hint = "write where len(TOKENS(X)) <= ..., or put it in the header for all holes"
            return Problem("max_tokens is an option of the whole run", hint)
        if name in IN_HEADER:
            hint = "put it in the header of the query, or in the call"
            return Problem(f"{name} is an option of the whole run", hint)
        meant = INSTEAD.get(name) or did_you_mean(name, known) or f"the options are {', '.join(known)}"
        return Problem(f"{decoder or 'a run'} has no option called {name!r}", meant)
    if decoder and row and row.decoders and decoder_named(decoder) not in row.decoders:
        return Problem(f"{decoder} has no option called {name!r}", f"{name} belongs to {', '.join(row.decoders)}")
    return None


def value_problem(name: str, value: Any) -> Problem | None:
    """The problem with the value of an option, None for a valid one."""
    if name == "decoder":
        return decoder_problem(value)
    return OPTIONS[name].problem(value) if name in OPTIONS else None


def decoder_problem(name: Any) -> Problem | None:
    """The problem with the name of a decoder, None for a valid one."""
    known = name.lower() if isinstance(name, str) else ""
    if known in DECODERS:
        return None
    if known in NEAREST:
        return Problem(f"this version does not have the decoder {name!r}", NEAREST[known])
    guess = did_you_mean(known, DECODERS) if known else None
    return Problem(f"no decoder is called {name!r}", guess or f"there are {', '.join(DECODERS)}")


def clash(decoder: str, given: Mapping[str, Any]) -> Problem | None:
    """The problem with these options of one decoder together."""
    row, temperature, n = DECODERS[decoder], given.get("temperature"), given.get("n")
    if row.weighs:
        if n is not None and n > 1:
            hint = "its posterior has the other texts; run it again with another seed for another draw"
            return Problem(f"{decoder} draws one result, but n is {n}", hint)
        name = distorting(given)
        sentence = f"{decoder} draws from the model's own distribution, which {name}={given.get(name)!r} would change"
        return Problem(sentence, f"leave {name}= out, or write sample({name}={given[name]!r})") if name else None
    if temperature and not row.draws:
        drawing = "beam_sample" if row.branches else "sample"
        hint = f"write {drawing}(temperature={temperature})"
        return Problem(f"{decoder} takes the best token and has no temperature", hint)
    if n is not None and n > 1 and not row.draws and not row.branches:
        hint = f"write beam(n={n}) for the {n} most likely results, or sample(n={n}) for {n} draws"
        return Problem(f"{decoder} finds one result, but n is {n}", hint)
    return None


def distorting(given: Mapping[str, Any]) -> str:
    """Name of the first option that changes the distribution from which tokens are drawn; "" for none."""
    neutral = {each.name: each.default for each in fields(Sampling) if each.name in AT_HOLE and each.name != "effort"}
    neutral["temperature"] = 1.0
    return next((name for name in neutral if given.get(name) not in (None, neutral[name])), "")


def hole_clash(hole: str, decoder: str, given: Mapping[str, Any]) -> Problem | None:
    """The problem with these options of a decoder at one hole."""
    if DECODERS[decoder].weighs:
        return Problem(
            f"{decoder} weighs whole texts, so [{hole}] cannot have it alone", f"put {decoder} into the header"
        )
    n = given.get("n")
    if (n or 1) > 1 or (DECODERS[decoder].branches and n is None):
        sentence = f"[{hole}] is filled once in each branch: {decoder} with n > 1 is for a whole query"
        return Problem(sentence, f"put {decoder} into the header, or write n=1")
    return clash(decoder, given)


INSTEAD: Mapping[str, str] = {
    "stop": 'where STOPS_AT(X, ".") ends a hole',
    "stop_sequences": 'where STOPS_AT(X, [".", "\\n"]) ends a hole',
    "max_len": "max_tokens=... bounds each hole, step_budget=... the run",
    "certificate": 'trace="run.json" is an option of the call, and keeps every call of the model',
    "truncation_threshold": "min_p=... leaves out tokens that are much less likely than the best",
    "is_async": "leave it out: @query makes an async function of an async def, and a plain one of a def",
    "output_writer": "stream() gives every event of a run",
}
"""Options of LMQL that do not exist here, and what to write instead."""

STEERED = (
    *("chunksize", "openai_chunksize", "verbose", "chatty_openai", "stats", "performance_stats", "chunk_timeout"),
    *("openai_nonstop", "show_speculative", "dump_compiled_code"),
)
"""Options of LMQL that changed no answer: they are ignored with a notice."""

# How a token is chosen -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sampling:
    """Policy by which a token is chosen from scores, in this order: penalties, mask, temperature, top_k, top_p, min_p,
    typical_p, choice (S2).

    At `temperature` 0 (argmax) the options that truncate have no effect. `seed` and `index` make a draw repeatable: its
    noise is a pure function of them, the path and the token (S3).

    The raw log-probability of a token is multiplied by `repetition_penalty` if the token occurs anywhere in the text so
    far, as in Hugging Face. Then two penalties of tokens that holes of this run generated are subtracted, as in the
    OpenAI API: `frequency_penalty` once per occurrence, and `presence_penalty` once.
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
    typical_p: float = 1.0
    effort: str | None = None

    @property
    def penalises(self) -> bool:
        """True if earlier tokens change the choice of the next one."""
        return self.repetition_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0

    @property
    def truncates(self) -> bool:
        """True if tokens can be excluded because others are more likely."""
        return self.top_k is not None or self.top_p < 1 or self.min_p > 0 or self.typical_p < 1

    @property
    def truncation(self) -> Mapping[str, float]:
        """Values of the options that exclude tokens; options without effect are missing."""
        found = {}
        for name, neutral in _TRUNCATING.items():
            value, row = getattr(self, name), OPTIONS[name]
            if value is not None:
                value = max(value, row.low) if row.high is None else min(max(value, row.low), row.high)
            if value != neutral:
                found[name] = value
        return found

    @property
    def policy(self) -> bytes:
        """Temperature and truncation as bytes, equal for equal draws: part of a question to the cache (S1)."""
        options = "".join(f";{name}={float(value)!r}" for name, value in self.truncation.items())
        return struct.pack("<f", self.temperature) + options.encode()


_TRUNCATING = {
    field.name: field.default
    for field in fields(Sampling)
    if field.name in AT_HOLE and field.name not in ("temperature", "effort") and not field.name.endswith("_penalty")
}
