"""The options of a decoder: one table of their names, what they may be, and what to say where they are not.

It is read for the header of a query, for options of a call, and for a decoder at a hole. Which decoders there are
stands in `lang/keywords.py`, where the language has its words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from lmql_lite.errors import did_you_mean
from lmql_lite.lang.keywords import ALIASES, DECODERS, NEAREST

MOST_RESULTS = 1024
"""More hypotheses than any query has asked for."""
CACHE_MODES = ("rw", "ro", "refresh", "replay", "off")

TAKING_THE_BEST = ("argmax", "beam")
"""Decoders that draw nothing."""
BEAMS = ("beam", "beam_sample")
"""Decoders whose hypotheses compete."""


class Problem(NamedTuple):
    """What is wrong, and what would help."""

    sentence: str
    hint: str | None


@dataclass(frozen=True, slots=True)
class Number:
    """An option that is a number from `low` to `high`. `sentence` says what it is."""

    kind: type[int] | type[float]
    low: float
    high: float
    sentence: str

    def takes(self, value: Any) -> bool:
        fits = isinstance(value, int if self.kind is int else int | float) and not isinstance(value, bool)
        return fits and self.low <= value <= self.high


NUMBERS: Mapping[str, Number] = {
    "n": Number(int, 1, MOST_RESULTS, f"n is how many results there are, from 1 to {MOST_RESULTS}"),
    "temperature": Number(float, 0, 100, "temperature is a number from 0 (argmax) upwards"),
    "top_k": Number(int, 1, 2**31, "top_k is a whole number of tokens, at least 1"),
    "top_p": Number(float, 0, 1, "top_p is a share of the probability, from 0 to 1"),
    "min_p": Number(float, 0, 1, "min_p is a share of the best token's probability, from 0 to 1"),
    "repetition_penalty": Number(float, 0.01, 100, "repetition_penalty is a number from 0.01 to 100; 1 is none"),
    "frequency_penalty": Number(float, -2, 2, "frequency_penalty is a number from -2 to 2; 0 is none"),
    "presence_penalty": Number(float, -2, 2, "presence_penalty is a number from -2 to 2; 0 is none"),
    "seed": Number(int, 0, 2**64 - 1, "a seed is a whole number from 0 to 2**64 - 1"),
    "max_tokens": Number(int, 1, 2**31, "max_tokens is a whole number, at least 1"),
    "max_backtracks": Number(int, 0, 2**31, "max_backtracks is a whole number, at least 0"),
    "step_budget": Number(int, 1, 2**53, "step_budget is a whole number of steps, at least 1"),
    "max_requests": Number(int, 0, 2**31, "max_requests is a whole number, at least 0"),
    "max_total_tokens": Number(int, 0, 2**63, "max_total_tokens is a whole number, at least 0"),
    "max_cost": Number(float, 0, 1e12, "max_cost is a sum of money, at least 0"),
}

OPTIONS = (*NUMBERS, "cache", "cache_mode", "speculate", "prices")
"""What may stand in a header."""

PENALTIES = ("repetition_penalty", "frequency_penalty", "presence_penalty")
HOLE_OPTIONS = ("n", "temperature", "top_k", "top_p", "min_p", *PENALTIES)
"""What may stand in the decoder of one hole: how its tokens are chosen. All else is the run's."""

INSTEAD: Mapping[str, str] = {
    "stop": 'where STOPS_AT(X, ".") ends a hole',
    "stop_sequences": 'where STOPS_AT(X, [".", "\\n"]) ends a hole',
    "max_length": "max_tokens=... bounds each hole, and where len(X) < 80 one of them",
    "max_new_tokens": "max_tokens=... bounds each hole, and where len(TOKENS(X)) < 20 one of them",
    "max_completion_tokens": "max_tokens=... bounds each hole, and where len(TOKENS(X)) < 20 one of them",
    "model": 'from "MODEL" below the body names the model, as does the option model= of a call',
    "decoder": "the word of the header is the decoder; decoder= is an option of a call",
    "num_beams": "beam(n=...) says how many beams there are",
    "beams": "beam(n=...) says how many beams there are",
    "best_of": "sample(n=...) gives as many results, best first",
    "num_return_sequences": "n=... says how many results there are",
    "do_sample": "write sample instead of argmax",
    "logit_bias": "a where clause says what may be written, such as X in [...] or not ... in X",
    "stream": "stream() gives every event of a run",
    "tools": "tools=[...] stands at a hole: [argmax(tools=[f]) X]",
    "max_len": "max_tokens=... bounds each hole, step_budget=... the run",
    "chunksize": "leave it out: a request goes as far as its answer may be used, and is closed there",
    "openai_chunksize": "leave it out: a request goes as far as its answer may be used, and is closed there",
    "chunk_timeout": 'model("openai/NAME", timeout=...) says how long a server may be silent',
    "openai_nonstop": "leave it out: stop phrases are sent where the server tells which of them it met",
    "show_speculative": "speculate=False turns guesses off; lq run --usage counts them",
    "certificate": 'trace="run.json" is an option of the call, and keeps every call of the model',
    "dump_compiled_code": "leave it out: a query becomes no Python; lq run --dry-run shows what it does",
    "verbose": "leave it out: the library prints nothing; lq run --usage counts, and stream() tells every step",
    "chatty_openai": "leave it out: the library prints nothing; lq run --usage counts, and stream() tells every step",
    "stats": "leave it out: every result has its usage",
    "performance_stats": "leave it out: every result has its usage",
    "truncation_threshold": "min_p=... leaves out tokens that are much less likely than the best",
    "output_writer": "stream() gives every event of a run",
}
"""Options of LMQL's decoders that are not ours, and what to write instead."""


def decoder_named(name: str) -> str:
    """The name that a decoder has here: `beam_search` is `beam`, and case does not matter."""
    return ALIASES.get(name.lower(), name.lower())


def option_problem(decoder: str, name: str) -> Problem | None:
    """What is wrong with an option of that name in a header or a call, None where there is one."""
    return None if name in OPTIONS else _unknown(decoder, name, OPTIONS)


def hole_option_problem(decoder: str, name: str) -> Problem | None:
    """What is wrong with an option of that name in the decoder of one hole, None where there is one."""
    if name in HOLE_OPTIONS:
        return None
    if name == "max_tokens":
        hint = "write where len(TOKENS(X)) <= ..., or put it into the header for all holes"
        return Problem("max_tokens is an option of the whole run", hint)
    if name in OPTIONS:
        return Problem(f"{name} is an option of the whole run", "put it into the header of the query, or into the call")
    return _unknown(decoder, name, HOLE_OPTIONS)


def value_problem(name: str, value: Any) -> Problem | None:
    """What is wrong with the value of an option, None where it is fine. `cache` is looked at elsewhere."""
    if name in NUMBERS and not NUMBERS[name].takes(value):
        return Problem(f"{NUMBERS[name].sentence}; this is {value!r}", None)
    if name == "speculate" and not isinstance(value, bool):
        return Problem(f"speculate is True or False; this is {value!r}", None)
    if name == "cache_mode" and value not in CACHE_MODES:
        hint = f"there are {', '.join(CACHE_MODES[:-1])} and {CACHE_MODES[-1]}"
        return Problem(f"no cache mode is called {value!r}", hint)
    if name == "prices" and not _are_prices(value):
        sentence = f"prices are two numbers, of a million tokens of prompts and of answers; this is {value!r}"
        return Problem(sentence, "for example prices=(0.15, 0.60)")
    if name == "decoder":
        return decoder_problem(value)
    return None


def decoder_problem(name: Any) -> Problem | None:
    """What is wrong with what should be the name of a decoder."""
    known = name.lower() if isinstance(name, str) else ""
    if known in DECODERS:
        return None
    if known in NEAREST:
        return Problem(f"the decoder {name!r} is not in this version", NEAREST[known])
    guess = did_you_mean(known, DECODERS) if known else None
    return Problem(f"no decoder is called {name!r}", guess or f"there are {', '.join(DECODERS)}")


def clash(decoder: str, temperature: float | None, n: int | None) -> Problem | None:
    """What is wrong with these options of one decoder together."""
    if temperature and decoder in TAKING_THE_BEST:
        drawing = "sample" if decoder == "argmax" else "beam_sample"
        hint = f"write {drawing}(temperature={temperature})"
        return Problem(f"{decoder} takes the best token and has no temperature", hint)
    if n is not None and n > 1 and decoder == "argmax":
        hint = f"beam(n={n}) finds the best few, sample(n={n}) draws as many"
        return Problem(f"argmax finds one result, and n is {n}", hint)
    return None


def hole_clash(hole: str, decoder: str, temperature: float | None, n: int | None) -> Problem | None:
    """What is wrong with these options of a decoder at one hole."""
    if (n or 1) > 1 or (decoder in BEAMS and n is None):
        sentence = f"[{hole}] is filled in each hypothesis once: {decoder} with n > 1 is for a whole query"
        return Problem(sentence, f"put {decoder} into the header, or write n=1")
    return clash(decoder, temperature, n)


def _unknown(decoder: str, name: str, names: tuple[str, ...]) -> Problem:
    sentence = f"{decoder} has no option called {name!r}"
    return Problem(sentence, INSTEAD.get(name) or did_you_mean(name, names) or f"the options are {', '.join(names)}")


def _are_prices(value: Any) -> bool:
    numbers = value if isinstance(value, tuple | list) else ()
    return len(numbers) == 2 and all(
        isinstance(each, int | float) and not isinstance(each, bool) and each >= 0 for each in numbers
    )
