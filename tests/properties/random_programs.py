"""Random whole programs as source text, with inputs, options and a model."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from typing import Any

import lmql_lite as lq

SCRIPT = "Say: a ban. The end? 12 cats, é b.\nAn apple a day! No. - 7\n"
PHRASES = ("a", "b", "an", "the", " ", ".", "1", "é", "e ", "?", "\n", "ba")
OPTIONS = ("a", "ab", "a ban", "the end", "12", "-7", "7", "é", "The end. Or not?", "an apple", "2024-02-29", "none")
PATTERNS = ("[a-z ]+", "[0-9]{1,3}", r"\S+ \S+", "(?:[a-z]+[ ,.]?){2,4}", "[^a]{0,9}", "a.*", "(?s:.){4,12}")
STOP_PATTERNS = ("[.!?]", r"\d", r"\s\s", "an?d?b")
TEXTS = (" ", ".", " then ", "\\n- ", "", "12", "Say:", "é", ", ")
METHODS = ("isdigit", "isalpha", "isascii")
TYPES = {"int": "N", "Literal['a', 'ab', '12']": "K", "bool": "B"}
DECORATORS = ("keep", "known")

SIZES = ("len({X})", "len({X})", "len({X})", "len(WORDS({X}))", "len(SENTENCES({X}))", "len(LINES({X}))")
SIZES += ("{X}.count({phrase!r})",)
NUMBER = "({guard}({X}) and {read}({X}) {sign} {bound})"
"""A number is compared where `INT` or `FLOAT` guards it."""
ATOMS: dict[str, tuple[float, tuple[str, ...]]] = {
    "length": (6, ("{size} <= {n}", "{size} < {n}", "{size} >= {n}", "{size} == {n}", "{size} != {n}",
        "{low} <= {size} <= {high}")),
    "content": (3, ("{phrase!r} in {X}", "{phrase!r} not in {X}")),
    "edge": (2, ("{X}.startswith({phrase!r})", "{X}.endswith(({phrase!r}, {other!r}))",
        "STARTS_WITH({X}, [{phrase!r}, {other!r}])", "ENDS_WITH({X}, [{phrase!r}, {other!r}])")),
    "one of": (1.5, ("{X} in {options}", "{X} in {options}", "{X} not in {options}", "{X} != {option!r}")),
    "pattern": (1.5, ("REGEX({X}, {pattern!r})", "re.fullmatch({pattern!r}, {X})")),
    "shape": (1.5, ("{X}.{method}()", "INT({X})", "FLOAT({X})", "DATE({X})")),
    "number": (1.5, ("{number}", "({number} or {X} == {option!r})", "({X} == {option!r} or {number})")),
    "python": (0.7, ("len(set(str({X}))) > {few}", "even({X})", "few({X})")),
    "stop": (3, ("STOPS_AT({X}, {phrase!r})", "STOPS_BEFORE({X}, {phrase!r})", "STOPS_AT({X}, [{phrase!r}, {other!r}])",
        "STOPS_BEFORE({X}, [{phrase!r}, {other!r}])", "STOPS_AT({X}, re.compile({stop!r}))",
        "STOPS_BEFORE({X}, re.compile({stop!r}))")),
}  # fmt: skip
"""Kinds of conditions: how often one is drawn, and its forms."""

PRELUDE = {
    "keep": """\
def keep(value):
    return value
""",
    "known": """\
class Known:
    def pre(self, name, context):
        return "a" if len(context.prompt) % 3 == 0 else None
known = Known()
""",
    "few": """\
def few(text, final=True):
    letters = len(set(str(text)))
    return letters < 5 if final or letters > 4 else None
""",
    "even": """\
def even(text):
    return sum(str(text).encode()) % 2 == 0
""",
    "ask": """\
@query
def ask(word):
    '''lq
    "<{word}[A]>" where len(A) < 3 and A != word
    return A
    '''
""",
    "remark": """\
@query
def remark(most):
    '''lq
    for _ in range(2):
        "([A])" where len(A) < most
    '''
""",
}
"""Source of the queries and functions that programs call, added to a program that calls them."""


@dataclass(frozen=True)
class Program:
    """All that determines a result. `model` has the seed, certainty and levels of a scripted model; None is the demo
    model."""

    source: str
    inputs: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    model: tuple[int, float, int | None] | None = (0, 4.0, None)

    def made(self) -> lq.ScriptedModel | str:
        if self.model is None:
            return "demo"
        seed, certainty, levels = self.model
        return lq.ScriptedModel(SCRIPT, seed=seed, certainty=certainty, levels=levels)

    def __str__(self) -> str:
        """Python expression of the program, to paste into a test."""
        source = self.source.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
        return (
            f'Program(\n    """\\\n{source}\n""",\n    inputs={self.inputs!r},\n    options={self.options!r},\n'
            f"    model={self.model!r},\n)"
        )


class Clauses:
    """Source text of random conditions on a hole.

    `others` are holes that may have a value by then. `given` maps inputs and variables of the query to their values.
    """

    def __init__(
        self, dice: random.Random, hole: str, others: tuple[str, ...] = (), given: dict[str, Any] | None = None
    ) -> None:
        self.dice = dice
        self.hole = hole
        self.others = others
        self.given = given or {}

    def clause(self, depth: int, plain: bool = False) -> str:
        """A random clause. If `plain`, it may stand under `not`."""
        if depth <= 1:
            return self.atom(plain)
        joined = self.dice.choices(["and", "or", "not"], [5, 3, 1])[0]
        if joined == "not":
            return f"not ({self.clause(depth - 1, plain=True)})"
        parts = [self.clause(depth - 1, plain) for _ in range(self.dice.choice([2, 2, 3]))]
        return "(" + f" {joined} ".join(parts) + ")"

    def atom(self, plain: bool) -> str:
        dice = self.dice
        weights = {kind: weight for kind, (weight, _) in ATOMS.items() if not (plain and kind == "stop")}
        weights |= {"given": 1.5} if self.given else {}
        kind = dice.choices(list(weights), list(weights.values()))[0]
        if kind == "given":
            return self.without_hole()
        number, (guard, read) = dice.randint(1, 9), dice.choice([("INT", "int"), ("INT", "int"), ("FLOAT", "float")])
        written = dice.choice(ATOMS[kind][1]).replace("{size}", dice.choice(SIZES)).replace("{number}", NUMBER)
        return written.format(
            X=self.hole, phrase=dice.choice(PHRASES), other=dice.choice(PHRASES), options=dice.sample(OPTIONS, 3),
            option=dice.choice(OPTIONS), pattern=dice.choice(PATTERNS), stop=dice.choice(STOP_PATTERNS),
            method=dice.choice(METHODS), few=dice.randint(1, 3), low=number // 2, n=number, high=number + 2,
            guard=guard, read=read, sign=dice.choice(["<", "<=", ">", ">=", "!="]), bound=dice.randint(-9, 300),
        )  # fmt: skip

    def without_hole(self) -> str:
        """Condition that is known before the hole is opened. Operands after a false guard are never evaluated."""
        name = self.dice.choice(list(self.given))
        value = self.given[name]
        true, false = (name, f"not {name}") if value else (f"not {name}", name)
        match value:
            case bool():
                return self.dice.choice([true, true, true, false, f"({true} or 1/0)", f"({false} and 1/0)"])
            case int():
                return self.dice.choice([f"{name} < {value + 1}", f"{name} == {value}", f"{name} > {value}"])
        return self.dice.choice([f"{self.hole} not in {name}", f"{self.hole} in {name}", f"len({name}) > 1"])

    def together(self) -> str:
        """Condition on the hole and another one."""
        hole, other = self.hole, self.dice.choice(self.others)
        return self.dice.choice(
            [
                f"{hole} != {other}",
                f"{hole} != str({other})",
                f"str({other}) not in str({hole})",
                f"len(str({hole})) <= len(str({other})) + 3",
                f"not ({hole} == 'a' and {other} == 'a')",
                f"({hole} == 'a' or {other} != 'b')",
                f"({hole} in ['a', 'b'] or len(str({other})) < 3)",
                f"str({hole})[:1] != str({other})[:1]",
            ]
        )


class Programs:
    """Writes one random program."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.given: dict[str, Any] = {
            "flag": dice.random() < 0.5,
            "most": dice.randint(1, 6),
            "words": ["a", "ab", "é"],
        }
        self.given["count"] = 2
        self.holes: list[str] = []
        """Holes written so far."""
        self.filled: list[str] = []
        """Holes that have a value by then, whatever the model generates."""
        self.clauses: list[str] = []
        """Clauses of the `where` at the end."""
        self.has_header = dice.random() < 0.5
        self.counted: set[str] = set()

    def yes(self, chance: float) -> bool:
        return self.dice.random() < chance

    def program(self) -> Program:
        dice = self.dice
        body = self.block(dice.choice([1, 1, 1, 2, 3]), dice.choice([0, 0, 0, 1, 1, 2]))
        if any("count" in line for line in (*body, *self.clauses)):
            body = ["count = 2", *body]
        options = self.options()
        if self.has_header:
            decoder = options.pop("decoder")
            header = f"{decoder}({', '.join(f'{name}={value!r}' for name, value in options.items())})"
            options = {}
            body = [header, *("    " + line for line in body)]
            if self.clauses:
                body += ["where", "    " + " and ".join(self.clauses)]
        words = set(re.findall(r"\w+", "\n".join(body)))
        prelude = "".join(source for name, source in PRELUDE.items() if name in words)
        read = words - {"count"}
        given = {name: value for name, value in self.given.items() if name in read}
        scripted = dice.randint(0, 1), dice.choice([0.0, 4.0, 20.0]), dice.choice([None, None, 2])
        return Program(prelude + "\n".join(body), given, options, None if self.yes(0.005) else scripted)

    def options(self) -> dict[str, Any]:
        dice = self.dice
        decoder = dice.choices(["argmax", "sample", "beam", "beam_sample"], [6, 4, 0.6, 0.4])[0]
        options: dict[str, Any] = {"decoder": decoder, "seed": dice.randint(0, 9)}
        options |= {"max_tokens": 10, "max_backtracks": 4}
        if decoder.startswith("beam"):
            options["n"] = dice.choice([1, 2, 2, 3])
        elif decoder == "sample":
            options["n"] = dice.choice([1, 1, 1, 2, 3])
            options |= dice.choice([{}, {"temperature": 0.6}, {"temperature": 1.5, "top_k": 5}, {"top_p": 0.8}])
        options |= dice.choice([{}, {}, {}, {"frequency_penalty": 0.8}, {"repetition_penalty": 1.3}])
        return options

    def block(self, length: int, depth: int, certain: bool = True) -> list[str]:
        """Lines of some statements. `certain` is true if they run whatever the model generates."""
        return [line for _ in range(length) for line in self.statement(depth, certain)]

    def statement(self, depth: int, certain: bool) -> list[str]:
        dice = self.dice
        kind = dice.choices(
            ["prompt", "for", "while", "if", "try", "let"], [6, 1, 1, 2, 1, 1] if depth else [6, 0, 0, 0, 0, 1]
        )[0]

        def inside() -> list[str]:
            block = self.block(dice.choice([1, 1, 2]), depth - 1, certain and kind in ("for", "while"))
            return ["    " + line for line in block]

        match kind:
            case "for":
                return [f"for i{depth} in {dice.choice(['range(2)', 'words'])}:", *inside()]
            case "while":
                return [f"k{depth} = 0", f"while k{depth} < 2:", f"    k{depth} += 1", *inside()]
            case "if":
                tests = ["flag", "not flag", "most > 3", *(f"{name} == 'a'" for name in self.filled)]
                return [f"if {dice.choice(tests)}:", *inside(), *(["else:", *inside()] if self.yes(0.5) else [])]
            case "try":
                return ["try:", *inside(), "except lq.ConstraintError:", "    'none'"]
            case "let":
                return [dice.choice(["count += 1", "count = most"])]
        before = len(self.holes)
        lines = [self.prompt()]
        self.filled += self.holes[before:] if certain else []
        return lines

    def prompt(self) -> str:
        dice = self.dice
        if self.yes(0.06):
            clause = dice.choice(["", " where D != 'a'", " where len(D) < 3", " where flag and D in ['a', 'é']"])
            distribution = " distribution D in ['a', 'ab', 'b\\n', 'é']"
            return f'"{dice.choice(TEXTS)}[D]{dice.choice(TEXTS)}"{clause}{distribution}'
        if self.yes(0.1):
            kind, name = dice.choice(list(TYPES.items()))
            return f'"{dice.choice(TEXTS)}[{name}: {kind}]{dice.choice(TEXTS)}"{self.typed(name)}'
        text, clauses, here = "", list[str](), list[str]()
        for _ in range(dice.choices([1, 2, 3], [5, 3, 1])[0]):
            name = dice.choice("XYZ")
            text += dice.choice(TEXTS) + self.hole(name)
            here.append(name)
            self.holes.append(name)
        for name in dict.fromkeys(here):
            others = tuple(dict.fromkeys(other for other in (*self.holes, *here) if other != name))
            written = Clauses(dice, name, others, self.given if self.yes(0.5) else {})
            some = [written.clause(dice.choices([1, 2, 3], [12, 7, 1])[0]) for _ in range(dice.choice([1, 1, 1, 2]))]
            if others and self.yes(0.4):
                some.append(written.together())
            if self.yes(0.1):
                tokens = f"len(TOKENS({name})) {dice.choice(['<', '<=', '=='])} {dice.randint(1, 9)}"
                some.append(tokens if self.yes(0.3) else Clauses(dice, name, others, self.given).without_hole())
            dice.shuffle(some)
            if self.has_header and self.yes(0.6):
                if name not in self.counted or self.yes(0.3):
                    self.clauses += some
                    self.counted.add(name)
            else:
                clauses += some
        dice.shuffle(clauses)
        text += dice.choice(TEXTS)
        return f'"{text}"' + (f" where {' and '.join(clauses)}" if clauses else "")

    def hole(self, name: str) -> str:
        kind = self.dice.choices(["plain", "decorated", "decoded", "query"], [12, 1, 1, 1])[0]
        match kind:
            case "decorated":
                return f"[@{self.dice.choice(DECORATORS)} {name}]"
            case "decoded":
                return f"[{self.dice.choice(['argmax', 'sample(temperature=0.8)'])} {name}]"
            case "query":
                return f"[{name}: {self.dice.choice(['ask(1)', 'remark(3)'])}]"
        return f"[{name}]"

    def typed(self, name: str) -> str:
        dice = self.dice
        if name == "N":
            some = [f"N < {dice.randint(-5, 90)}", f"N != {dice.randint(0, 9)}"]
            some += ["N in [1, 7, 12]", "N % 2 == 0", "len(N) < 4"]
        elif name == "K":
            some = ["K != 'a'", "len(K) > 1", "K in ['ab', '12', 'b']", "even(K)"]
        else:
            some = ["B", "not B", "(B or flag)", "B == flag"]
        return f" where {' and '.join(dice.sample([*some, 'flag', 'most < 5'], dice.choice([1, 1, 2])))}"


def random_program(seed: int) -> Program:
    return Programs(random.Random(seed)).program()
