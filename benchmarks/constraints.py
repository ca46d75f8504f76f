"""What a constraint costs beside the model: masks of 100-token runs, ours, llguidance's and xgrammar's.

    python benchmarks/constraints.py [--vocabulary 128k --vocabulary 4k] [--repeats 5] [--cache FOLDER]

Every case is a condition and texts that meet it, 100 tokens or a little more in one hole or in several short ones. A
repeat starts with a new engine, so it compiles, meets every state for the first time, and walks the texts. Times are
CPU time of the thread; the table of wall-clock times has the same shape. What a peer cannot say or refuses stands in
its own words. Needs the dependency group `bench`.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import itertools
import json
import pkgutil
import re
import statistics
import string
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import llguidance
import llguidance.numpy
import numpy as np
import xgrammar
from numpy.typing import NDArray
from trained import END_OF_TEXT, LARGE, SMALL, default_cache, tokenizer

import lmql_lite
import lmql_lite.constraints
from lmql_lite.cache.scores import Scores
from lmql_lite.constraints.formats import SHAPES
from lmql_lite.constraints.json_schema import grammar
from lmql_lite.constraints.matcher import Engine, Matcher
from lmql_lite.constraints.terms import (
    And,
    Begins,
    Choice,
    Contains,
    Ends,
    Length,
    Matches,
    Not,
    Occurrences,
    Or,
    Stop,
    Term,
)
from lmql_lite.constraints.vocabulary import Vocabulary
from lmql_lite.errors import ConstraintError, Span
from lmql_lite.models.tokenizer import HFTokenizer

VOCABULARIES = {"128k": LARGE, "4k": SMALL}
TOKENS = 100
MAX_TOKENS = 512
"""Of a hole: far away, as it mostly is."""
PEER_SECONDS = 20.0
"""A peer's run is broken off after so long, and repeated no more."""
WHERE = Span("benchmark", "[X]", 0, 3)

# Cases ---------------------------------------------------------------------------------------------------------------

PARAGRAPH = (
    "In version 2.1 the parser reads `x = f(a[i], b) + 1`, one token at a time; whatever follows is kept for later. "
    "Fifteen travellers, tired but cheerful, crossed the frozen lake before 8:30 (see p. 47), and nobody complained: "
    '"Magnificent!", wrote Amélie to her sister. We measured 12 jobs on 4 machines; 3 failed with an I/O error -> '
    "retried, ok. TODO: rename `total_count`, drop the unused imports, then publish everything else by Wednesday."
)
"""Prose and code: 100 tokens of it have fewer than 400 characters, and between 20 and 60 words."""
PHRASES = tuple(
    first + second
    for first in ("anti", "auto", "bio", "chrono", "geo", "hyper", "micro", "photo", "tele", "thermo")
    for second in ("chrome", "cycle", "gram", "graph", "lysis", "meter", "phone", "scope", "sphere", "type")
)
"""100 phrases that no case says."""
OPTIONS = tuple(
    f"{colour} {animal} {number}"
    for colour in ("amber", "black", "blue", "green", "grey", "ivory", "olive", "red", "white", "yellow")
    for animal in ("badger", "bear", "crane", "crow", "deer", "fox", "frog", "heron", "otter", "wolf")
    for number in range(1, 11)
)
LINES = (
    "The cat sat on a mat, at 7 pm; it saw 2 of us go by. Why? I do not know: we had no fish, no milk. It is so.",
    "a = b + c; d = e[f] * 2; if g(h, i): j -= 1; k = {l: m, n: o}; p = q / r, s = t % u; v <<= w; x, y = y, x",
)


@dataclass(frozen=True)
class Case:
    """A condition, texts that meet it, and how the peers are told of it: `lark` for both, or `regex` for xgrammar."""

    name: str
    term: Term
    texts: tuple[str, ...]
    lark: str
    regex: str | None = None
    end: str = ""
    """What the texts end with, after so many tokens as are measured."""
    schema: Mapping[str, Any] | None = None
    """A JSON Schema in the place of the term."""
    spare: int | None = None
    """Tokens that a hole may have beyond those of its text; None: the limit is far away."""


def stop(phrase: str) -> Term:
    return Stop(phrase.encode(), inclusive=True)


def lacking(*phrases: str) -> tuple[Term, ...]:
    return tuple(Not(Contains(phrase.encode())) for phrase in phrases)


def regex_of_words(at_least: int, at_most: int) -> str:
    return rf"[ \n]*([^ \n]+[ \n]+){{{max(at_least - 1, 0)},{at_most - 1}}}[^ \n]*[ \n]*"


def having(*phrases: str) -> tuple[Term, ...]:
    return tuple(Contains(phrase.encode()) for phrase in phrases)


def lark_of(*phrases: str) -> str:
    return " & ".join(f"/(?s:.*){phrase}(?s:.*)/" for phrase in phrases)


def phrases_and_counts() -> Iterator[Case]:
    """Conditions that would multiply, were each phrase a part of the state."""
    twelve = (
        "version",
        "parser",
        "token",
        "later",
        "lake",
        "people",
        "sister",
        "jobs",
        "machine",
        "error",
        "unused",
        "import",
    )
    text = (PARAGRAPH,)
    yield Case("12 phrases", And(having(*twelve)), text, f"start: X\nX: {lark_of(*twelve)}")
    yield Case(
        "12 phrases, len<=600",
        And((*having(*twelve), Length(0, 600))),
        text,
        f"start: X\nX: {lark_of(*twelve)} & /(?s:.{{0,600}})/",
    )
    pairs = [(phrase, 590 + at) for at, phrase in enumerate(twelve[:10])]
    either = " & ".join(f"/(?s:.*){phrase}(?s:.*)|(?s:.{{0,{most}}})/" for phrase, most in pairs)
    yield Case(
        "and of 10 (in or len)",
        And(tuple(Or((Contains(phrase.encode()), Length(0, most))) for phrase, most in pairs)),
        text,
        f"start: X\nX: {either}",
    )
    yield Case(
        "26 letters, len<=600",
        And((*having(*string.ascii_lowercase), Length(0, 600))),
        text,
        f"start: X\nX: {lark_of(*string.ascii_lowercase)} & /(?s:.{{0,600}})/",
    )
    yield Case(
        "26 letters, len<=80, words<=20",
        And((*having(*string.ascii_lowercase), Length(0, 80), Length(0, 20, unit="words"))),
        ("the quick brown fox jumps over a lazy dog, sphinx of black quartz, judge my vow",) * 6,
        f"start: X\nX: {lark_of(*string.ascii_lowercase)} & /(?s:.{{0,80}})/ & /{regex_of_words(0, 20)}/",
    )
    yield Case(
        "3 counts, len==80",
        And((*(Length(20, 20, Occurrences(letter)) for letter in (b"a", b"b", b"c")), Length(80, 80))),
        ("cab abc bca,acb bac." * 4,) * 2,
        "start: X\nX: " + " & ".join(f"/([^{each}]*{each}){{20}}[^{each}]*/" for each in "abc") + " & /(?s:.{80})/",
    )
    endings = tuple(f"{word} {number}." for word in PHRASES for number in range(5))
    yield Case(
        "500 endings",
        Ends(tuple(map(str.encode, endings))),
        (PARAGRAPH,),
        f"start: /(?s:.*)({'|'.join(re.escape(each) for each in endings)})/",
    )
    beginnings = tuple(sorted(f"{word} {number} " for word in PHRASES for number in range(100)))
    yield Case(
        "10,000 prefixes",
        Begins(tuple(map(str.encode, beginnings))),
        (beginnings[7] + PARAGRAPH,),
        f"start: /({'|'.join(beginnings)})(?s:.*)/",
    )
    schema = {"type": "array", "items": {"type": "string"}}
    yield Case(
        "list[str] near max_tokens",
        And(()),
        tuple(json.dumps([word, *PARAGRAPH.split()[at : at + 6]]) for at, word in enumerate(PHRASES[:20])),
        f"start: %json {json.dumps(schema)}",
        schema=schema,
        spare=28,
    )
    yield Case(
        "6 tokens, len>20",
        And((Length(0, 6, "tokens"), Length(20, None))),
        ("Return the default description of this",) * 17,
        "start: /(?s:.{20,})/",
    )


def thousand_holes() -> str:
    """A query with one `where` over 1,000 holes."""
    prompts = "\n".join(f'"[X{at}]"' for at in range(1000))
    return f"{prompts}\nwhere\n    " + " and ".join(f"len(X{at}) < {at % 90 + 9}" for at in range(1000))


def cases() -> Iterator[Case]:
    yield from everyday()
    yield from phrases_and_counts()


def everyday() -> Iterator[Case]:
    banned = "|".join(PHRASES)
    lengths = "/(?s:.{0,400})/"
    words = Length(0, 60, unit="words")
    yield Case(
        "stop, len<=400, 2 bans",
        And((stop("\n"), Length(0, 400), *lacking("foo", "bar"))),
        (PARAGRAPH,),
        rf"start: x{chr(10)}x[lazy]: /(?s:.*)\n/ & {lengths} & ~/(?s:.*)foo(?s:.*)/ & ~/(?s:.*)bar(?s:.*)/",
        end="\n",
    )
    yield Case(
        "100 bans, stop, len<=400",
        And((stop("\n"), Length(0, 400), *lacking(*PHRASES))),
        (PARAGRAPH,),
        rf"start: x{chr(10)}x[lazy]: /(?s:.*)\n/ & {lengths} & ~/(?s:.*)({banned})(?s:.*)/",
        end="\n",
    )
    yield Case("len<=400", Length(0, 400), (PARAGRAPH,), f"start: {lengths}", r"[\s\S]{0,400}")
    yield Case("words<=60", words, (PARAGRAPH,), f"start: /{regex_of_words(0, 60)}/", regex_of_words(0, 60))
    yield Case(
        "1,000 options",
        Choice(tuple(option.encode() for option in OPTIONS)),
        OPTIONS[3::37],
        "start: " + " | ".join(f'"{option}"' for option in OPTIONS),
        "|".join(OPTIONS),
    )
    yield Case(
        "REGEX(.{0,200}), 1 ban",
        And((Matches(".{0,200}"), *lacking("foo"))),
        LINES,
        "start: X\nX: /.{0,200}/ & ~/(?s:.*)foo(?s:.*)/",
    )
    dates = tuple(f"{1950 + 13 * i}-{1 + i * 7 % 12:02}-{1 + i * 11 % 28:02}" for i in range(40))
    yield Case("date", Matches(SHAPES["DATE"]), dates, f"start: /{SHAPES['DATE']}/", SHAPES["DATE"])
    floats = tuple(f"{'-' * (i % 3 == 0)}{i * i * 37 % 5000}.{i * 7919 % 1000:03}" for i in range(40))
    yield Case("float", Matches(SHAPES["FLOAT"]), floats, f"start: /{SHAPES['FLOAT']}/", SHAPES["FLOAT"])
    yield Case(
        "len<=400, 20<=words<=60",
        And((Length(0, 400), Length(20, 60, unit="words"))),
        (PARAGRAPH,),
        f"start: X\nX: {lengths} & /{regex_of_words(20, 60)}/",
    )


# Engines -------------------------------------------------------------------------------------------------------------


class Refused(Exception):
    """An engine says that it cannot; its own words."""


class Session(Protocol):
    """One engine with one condition."""

    def open(self) -> None:
        """A new hole."""

    def mask(self, tokens_left: int) -> Any:
        """The part that is measured: which tokens are allowed, in the engine's own form."""

    def allows(self, mask: Any, token: int) -> bool: ...

    def take(self, token: int) -> None: ...


class Ours:
    def __init__(self, vocabulary: Vocabulary, case: Case) -> None:
        self.tokens = vocabulary.tokens
        self.engine = Engine(vocabulary)
        self.case = case
        self.open()

    def open(self) -> None:
        if self.case.schema is None:
            self.matcher: Matcher = self.engine.matcher(self.case.term, b"", MAX_TOKENS, "X", WHERE)
        else:
            self.matcher = self.engine.grammars.matcher(grammar(self.case.schema), b"", "X", WHERE)

    def mask(self, tokens_left: int) -> NDArray[np.bool_] | bytes:
        """As the runtime asks for each token: a mask where the text is not forced."""
        return self.matcher.forced() or self.matcher.allowed(b"", tokens_left)

    def allows(self, mask: NDArray[np.bool_] | bytes, token: int) -> bool:
        if isinstance(mask, bytes):
            data = self.tokens[token] or b""
            return mask.startswith(data) or data.startswith(mask)
        return bool(mask[token])

    def take(self, token: int) -> None:
        self.matcher = self.matcher.advance(self.tokens[token] or b"")


def has_bit(mask: NDArray[np.int32], token: int) -> bool:
    return bool(int(mask[0, token // 32]) >> token % 32 & 1)


class LLGuidance:
    def __init__(self, peer: llguidance.LLTokenizer, case: Case, limits: llguidance.LLParserLimits | None) -> None:
        self.pristine = llguidance.LLMatcher(peer, case.lark, log_level=0, limits=limits)
        self.bits = llguidance.numpy.allocate_token_bitmask(1, peer.vocab_size)
        self._check(self.pristine)
        self.open()

    def _check(self, matcher: llguidance.LLMatcher) -> None:
        if matcher.is_error():
            raise Refused(matcher.get_error())

    def open(self) -> None:
        self.matcher = self.pristine.deep_copy()

    def mask(self, tokens_left: int) -> NDArray[np.int32]:
        llguidance.numpy.fill_next_token_bitmask(self.matcher, self.bits)
        return self.bits

    def allows(self, mask: NDArray[np.int32], token: int) -> bool:
        self._check(self.matcher)
        return has_bit(mask, token)

    def take(self, token: int) -> None:
        self.matcher.consume_token(token)
        self._check(self.matcher)


class XGrammar:
    def __init__(self, info: xgrammar.TokenizerInfo, case: Case) -> None:
        # one thread, as the others; no cache, since every repeat is to compile anew
        compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        try:
            self.compiled = compiler.compile_regex(case.regex) if case.regex else compiler.compile_lark(case.lark)
        except Exception as error:  # its own classes differ from one kind of grammar to the next
            raise Refused(str(error)) from error
        self.bits = np.zeros(xgrammar.get_bitmask_shape(1, info.vocab_size), dtype=np.int32)
        self.open()

    def open(self) -> None:
        self.matcher = xgrammar.GrammarMatcher(self.compiled)

    def mask(self, tokens_left: int) -> NDArray[np.int32]:
        if not self.matcher.fill_next_token_bitmask(self.bits):
            self.bits.fill(-1)
        return self.bits

    def allows(self, mask: NDArray[np.int32], token: int) -> bool:
        return has_bit(mask, token)

    def take(self, token: int) -> None:
        if not self.matcher.accept_token(token):
            raise Refused("a token that its own mask allows was not accepted")


# Measuring -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Taken:
    """Microseconds of CPU and on the wall."""

    cpu: float
    wall: float


class Stopwatch:
    """Reading the thread's clock takes about as long as a remembered mask: what an empty measurement shows is taken
    off every other."""

    def __init__(self) -> None:
        self._empty = Taken(0.0, 0.0)
        empty = [self.time(lambda: None)[1] for _ in range(2000)]
        self._empty = Taken(statistics.median(e.cpu for e in empty), statistics.median(e.wall for e in empty))

    def time(self, work: Callable[[], Any]) -> tuple[Any, Taken]:
        cpu = time.thread_time_ns()
        wall = time.perf_counter_ns()
        result = work()
        wall = time.perf_counter_ns() - wall
        cpu = time.thread_time_ns() - cpu
        taken = Taken(max(cpu / 1000 - self._empty.cpu, 0.0), max(wall / 1000 - self._empty.wall, 0.0))
        return result, taken


@dataclass
class Measured:
    compile: Taken
    masks: list[Taken] = field(default_factory=list)
    choices: list[Taken] = field(default_factory=list)


class Bench:
    def __init__(self, size: int, cache: Path) -> None:
        backend = tokenizer(size, cache)
        eos = backend.token_to_id(END_OF_TEXT)
        assert eos is not None
        ours = HFTokenizer(backend, eos=[eos])
        self.size = size
        self.encode = ours.encode
        self.vocabulary = Vocabulary(ours.vocabulary, ours.eos)
        wrapper = llguidance.TokenizerWrapper(_Wrapped(ours, eos))
        self.llguidance = llguidance.LLTokenizer(wrapper, n_vocab=size)
        spelled = [data or END_OF_TEXT.encode() for data in ours.vocabulary]
        self.xgrammar = xgrammar.TokenizerInfo(spelled, stop_token_ids=[eos])
        self.rows = self._rows()
        self.stopwatch = Stopwatch()

    def engines(self, case: Case) -> dict[str, Callable[[], Session]]:
        fuel = llguidance.LLParserLimits(initial_lexer_fuel=5 * 10**8, step_lexer_fuel=10**8)
        return {
            "ours": lambda: Ours(self.vocabulary, case),
            "llguidance": lambda: LLGuidance(self.llguidance, case, None),
            "  fuel x500": lambda: LLGuidance(self.llguidance, case, fuel),
            "xgrammar": lambda: XGrammar(self.xgrammar, case),
        }

    def _rows(self) -> list[NDArray[np.float32]]:
        """Scores like those of a model, by Zipf's law; the best tokens are to be put where a run wants them."""
        zipf = -np.log(np.arange(1, self.size + 1, dtype=np.float64))
        zipf = (zipf - np.log(np.exp(zipf).sum())).astype(np.float32)
        dice = np.random.default_rng(0)
        return [dice.permutation(zipf) for _ in range(TOKENS)]

    def scores(self, place: int, token: int) -> Scores:
        """With the run's next token as the best one nine times out of ten, and else as the fourth."""
        row = self.rows[place % TOKENS].copy()
        rank = 3 if place % 10 == 7 else 0
        other = int(np.argpartition(-row, rank)[rank])
        row[[token, other]] = row[[other, token]]
        return Scores(row)

    def holes(self, case: Case) -> list[tuple[int, ...]]:
        """The tokens of the case's texts, until there are enough."""
        holes: list[tuple[int, ...]] = []
        for text in itertools.cycle(case.texts):
            end = self.encode(case.end.encode())
            holes.append(self.encode(text.encode())[: TOKENS - len(end)] + end)
            if sum(map(len, holes)) >= TOKENS:
                return holes
        raise AssertionError("a cycle does not end")

    def run(
        self, start: Callable[[], Session], holes: Sequence[Sequence[int]], spare: int | None = None, *, choose: bool
    ) -> Measured:
        forget()
        gc.collect()
        began = time.perf_counter()
        session, compiled = self.stopwatch.time(start)
        measured = Measured(compiled)
        for left, token in self.steps(session, holes, spare):
            mask, taken = self.stopwatch.time(partial(session.mask, left))
            measured.masks.append(taken)
            if not session.allows(mask, token):
                raise Refused(f"{self.vocabulary.tokens[token]!r} is masked at token {len(measured.masks)}")
            if not choose and time.perf_counter() - began > PEER_SECONDS:
                break
        if choose:  # apart, since reading rows of scores drives everything else out of the processor's cache
            session.open()
            for left, token in self.steps(session, holes, spare):
                mask = session.mask(left)
                if isinstance(mask, bytes):
                    continue
                scores = self.scores(len(measured.choices), token)
                measured.choices.append(self.stopwatch.time(partial(scores.best, mask))[1])
        return measured

    def steps(self, session: Session, holes: Sequence[Sequence[int]], spare: int | None) -> Iterator[tuple[int, int]]:
        """For every token how many are left for the hole, and the token; it is taken when the next one is asked for."""
        for number, hole in enumerate(holes):
            if number:
                session.open()
            limit = MAX_TOKENS if spare is None else len(hole) + spare
            for at, token in enumerate(hole):
                yield limit - at, token
                session.take(token)

    def repeated(self, start: Callable[[], Session], case: Case, repeats: int, *, ours: bool) -> list[Measured]:
        holes = self.holes(case)
        start()  # a process that has done this before
        began = time.perf_counter()
        runs: list[Measured] = []
        while len(runs) < repeats and (ours or time.perf_counter() - began < PEER_SECONDS):
            runs.append(self.run(start, holes, case.spare, choose=ours))
        return runs


class _Wrapped:
    """The tokenizer as llguidance asks for it."""

    def __init__(self, ours: HFTokenizer, eos: int) -> None:
        self.eos_token_id = eos
        self.bos_token_id = None
        self.tokens = [data or b"\xff" + END_OF_TEXT.encode() for data in ours.vocabulary]
        self.special_token_ids = [eos]
        self._encode = ours.encode

    def __call__(self, text: bytes) -> list[int]:
        return list(self._encode(text))


def forget() -> None:
    """What functions of the package remember of the terms before. Tables of Unicode stay: a process makes them once."""
    for module in pkgutil.iter_modules(lmql_lite.constraints.__path__, "lmql_lite.constraints."):
        if module.name.endswith((".charset", ".formats")):
            continue
        for value in vars(importlib.import_module(module.name)).values():
            clear = getattr(value, "cache_clear", None)
            if callable(clear) and not value.__module__.endswith((".charset", ".formats")):
                clear()


# Printing ------------------------------------------------------------------------------------------------------------

COLUMNS = ("compile", "first", "median", "mean", "p95", "worst", "choose")
TARGETS = {"compile": 2000.0, "median": 5.0, "mean": 200.0, "worst": 8000.0, "choose": 60.0}
"""Microseconds of CPU at the large vocabulary. The worst mask stands for a newly met state: nothing else is slow."""


def figures(run: Measured, clock: str) -> dict[str, float]:
    masks = [getattr(taken, clock) for taken in run.masks]
    choices = [getattr(taken, clock) for taken in run.choices]
    return {
        "compile": getattr(run.compile, clock),
        "first": masks[0],
        "median": statistics.median(masks),
        "mean": statistics.fmean(masks),
        "p95": float(np.quantile(masks, 0.95)),
        "worst": max(masks),
        "choose": statistics.median(choices) if choices else float("nan"),
    }


def cell(values: Sequence[float]) -> str:
    """The median of the runs and half of what lies between their extremes."""
    middle, spread = statistics.median(values), (max(values) - min(values)) / 2
    return "" if middle != middle else f"{_short(middle)} ±{_short(spread)}"


def _short(number: float) -> str:
    return f"{number:,.1f}" if number < 100 else f"{number:,.0f}"


def print_table(rows: list[tuple[str, str, list[Measured] | str]], clock: str) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    print(f"{'':{sum(widths) + 2}}" + "".join(f"{column:>17}" for column in COLUMNS))
    shown = None
    for case, engine, runs in rows:
        print(f"{'' if case == shown else case:{widths[0]}}  {engine:{widths[1]}}", end="")
        shown = case
        if isinstance(runs, str):
            print(f"  {runs}")
            continue
        each = [figures(run, clock) for run in runs]
        cells = "".join(f"{cell([one[column] for one in each]):>17}" for column in COLUMNS)
        cut = "" if len(runs[0].masks) >= TOKENS else f"  ({len(runs[0].masks)} tokens in {PEER_SECONDS:.0f} s)"
        print(cells + cut)
    print()


def print_verdict(rows: list[tuple[str, str, list[Measured] | str]]) -> None:
    print("targets: " + ", ".join(f"{column} <= {limit:,.0f} µs" for column, limit in TARGETS.items()))
    for case, engine, runs in rows:
        if engine != "ours":
            continue
        if isinstance(runs, str):
            print(f"  open    {case}: {runs}")
            continue
        each = [figures(run, "cpu") for run in runs]
        missed = [
            f"{column} {_short(value)}"
            for column, limit in TARGETS.items()
            if (value := statistics.median(one[column] for one in each)) > limit
        ]
        print(f"  {'missed' if missed else 'met   '}  {case}{': ' if missed else ''}{', '.join(missed)}")
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description="Costs of masks, in microseconds.")
    parser.add_argument("--vocabulary", action="append", choices=VOCABULARIES, help="128k, 4k; both unless told")
    parser.add_argument("--repeats", type=int, default=5, help="runs of every case (5)")
    parser.add_argument("--cache", type=Path, default=default_cache(), help="where the trained tokenizer is kept")
    parser.add_argument("--ours", action="store_true", help="without the peers")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    arguments = parser.parse_args()
    peers = ", ".join(f"{name} {version(name)}" for name in ("llguidance", "xgrammar"))
    print(f"Python {sys.version.split()[0]}, numpy {np.__version__}, {peers}; one thread\n")
    if not arguments.only:
        _, taken = Stopwatch().time(lambda: lmql_lite.compile(thousand_holes()))
        print(f"a query with 1,000 holes in one where, compiled in {taken.cpu / 1e6:.2f} s of CPU\n")
    for name in arguments.vocabulary or VOCABULARIES:
        bench = Bench(VOCABULARIES[name], arguments.cache)
        rows: list[tuple[str, str, list[Measured] | str]] = []
        for case in cases():
            if arguments.only not in case.name:
                continue
            for engine, start in bench.engines(case).items():
                if engine != "ours" and arguments.ours:
                    continue
                if engine.startswith(" ") and not isinstance(rows[-1][2], str):
                    continue  # it went through as it is
                runs: list[Measured] | str
                try:
                    runs = bench.repeated(start, case, max(arguments.repeats, 1), ours=engine == "ours")
                except (Refused, ConstraintError) as refusal:
                    runs = "refused: " + " ".join(str(refusal).split())[:110]
                rows.append((case.name, engine, runs))
        tokens = (
            f"{bench.size:,} tokens, {arguments.repeats} runs of {TOKENS} tokens; median of runs ± half their range"
        )
        print(f"== {tokens}\n\nmicroseconds of CPU")
        print_table(rows, "cpu")
        print("microseconds on the wall")
        print_table(rows, "wall")
        print_verdict(rows)


if __name__ == "__main__":
    main()
