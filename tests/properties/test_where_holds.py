"""Law 3: a finished hole meets its `where` as plain Python evaluates it, whatever the model wanted to say.

Random clauses as source text, run from end to end. What Python has no function for (`WORDS`, `STOPS_AT`, ...) is
defined here in a line or two, from what the language says it means.
"""

from __future__ import annotations

import ast
import datetime
import random
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

import lmql_lite as lq

SCRIPT = "Say: a ban. The end? 12 cats, é b.\nAn apple a day! No. - 7\n"
PHRASES = ("a", "b", "an", "the", " ", ".", "1", "é", "e ", "?", "\n", "ba")
OPTIONS = ("a", "ab", "a ban", "the end", "12", "-7", "é", "The end. Or not?", "an apple a day", "2024-02-29")
PATTERNS = ("[a-z ]+", "[0-9]{1,3}", r"\S+ \S+", r"(?:\w+[ ,.]?){2,4}", "[^a]{0,9}", "a.*", "(?s:.){4,12}")
STOP_PATTERNS = ("[.!?]", r"\d", r"\s\s", "an?d?b")
MAX_TOKENS = 48
SEEDS = [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 12))]


def sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.!?])\s+", text.strip()) if text.strip() else []


def is_date(text: str) -> bool:
    try:
        return bool(re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", text)) and bool(datetime.date.fromisoformat(text))
    except ValueError:
        return False


def ends(text: str, phrases: str | list[str]) -> bool:
    return text.endswith(phrases if isinstance(phrases, str) else tuple(phrases))


PLAIN: Mapping[str, Any] = {
    "re": re,
    "WORDS": str.split,
    "SENTENCES": sentences,
    "INT": lambda text: re.fullmatch("0|-?[1-9][0-9]*", text) is not None,
    "DATE": is_date,
    "REGEX": lambda text, pattern: re.fullmatch(pattern, text) is not None,
    "STARTS_WITH": lambda text, phrases: text.startswith(tuple(phrases)),
    "ENDS_WITH": ends,
    "STOPS_AT": lambda text, stop: True,
    "STOPS_BEFORE": lambda text, stop: True,
}


class Clauses:
    """Source text of random conditions on a hole; `earlier` are holes that have a value by then."""

    def __init__(self, dice: random.Random, hole: str, earlier: tuple[str, ...] = ()) -> None:
        self.dice = dice
        self.hole = hole
        self.earlier = earlier

    def clause(self, depth: int, plain: bool = False) -> str:
        if depth <= 1:
            return self.atom(plain)
        joined = self.dice.choices(["and", "or", "not"], [5, 3, 1])[0]
        if joined == "not":
            return f"not ({self.clause(depth - 1, plain=True)})"
        parts = [self.clause(depth - 1, plain) for _ in range(self.dice.choice([2, 2, 3]))]
        return "(" + f" {joined} ".join(parts) + ")"

    def atom(self, plain: bool) -> str:
        dice, hole = self.dice, self.hole
        kinds = {
            "length": 6,
            "content": 3,
            "edge": 2,
            "one of": 1.5,
            "pattern": 1.5,
            "shape": 1.5,
            "number": 1.5,
            "python": 0.7,
        }
        kinds |= {} if plain else {"stop": 4}
        kinds |= {"earlier": 2} if self.earlier else {}
        match dice.choices(list(kinds), list(kinds.values()))[0]:
            case "length":
                return self.length()
            case "content":
                return f"{dice.choice(PHRASES)!r} {dice.choice(['in', 'not in'])} {hole}"
            case "edge":
                some = dice.sample(PHRASES, 2)
                return dice.choice(
                    [
                        f"{hole}.startswith({some[0]!r})",
                        f"{hole}.endswith({tuple(some)!r})",
                        f"STARTS_WITH({hole}, {some!r})",
                        f"ENDS_WITH({hole}, {some!r})",
                    ]
                )
            case "one of":
                options = dice.sample(OPTIONS, 3)
                return dice.choice(
                    [
                        f"{hole} in {options}",
                        f"{hole} not in {options}",
                        f"{hole} != {options[0]!r}",
                        f"{hole} in {options}",
                    ]
                )
            case "pattern":
                pattern = dice.choice(PATTERNS)
                return dice.choice([f"REGEX({hole}, {pattern!r})", f"re.fullmatch({pattern!r}, {hole})"])
            case "shape":
                methods = [
                    f"{hole}.{name}()" for name in ("isdigit", "isalpha", "isupper", "islower", "isascii", "isspace")
                ]
                return dice.choice([*methods, f"INT({hole})", f"DATE({hole})"])
            case "number":
                # read only where it is one, as Python would have it
                return (
                    f"(INT({hole}) and int({hole}) {dice.choice(['<', '<=', '>', '>=', '!='])} {dice.randint(-9, 300)})"
                )
            case "python":
                return f"len(set({hole})) > {dice.randint(1, 3)}"
            case "stop":
                at = dice.choice(["STOPS_AT", "STOPS_BEFORE"])
                stop = dice.choice(
                    [
                        repr(dice.choice(PHRASES)),
                        repr(dice.sample(PHRASES, 2)),
                        f"re.compile({dice.choice(STOP_PATTERNS)!r})",
                    ]
                )
                return f"{at}({hole}, {stop})"
        other = dice.choice(self.earlier)
        return dice.choice(
            [f"{hole} != str({other})", f"str({other}) not in {hole}", f"len({hole}) <= len(str({other})) + 3"]
        )

    def length(self) -> str:
        counted, most = self.dice.choice([("{}", 30), ("WORDS({})", 6), ("SENTENCES({})", 3)])
        size = f"len({counted.format(self.hole)})"
        number = self.dice.randint(1, most)
        return self.dice.choice(
            [
                f"{size} <= {number}",
                f"{size} < {number + 1}",
                f"{size} >= {number}",
                f"{size} == {number}",
                f"{size} != {number}",
                f"{number // 2} <= {size} <= {number + 2}",
            ]
        )


def models(seed: int) -> Iterator[lq.ScriptedModel | None]:
    """The demo model, one that follows its script, one that hardly does, and noise."""
    yield None
    for certainty in (20.0, 4.0, 0.0):
        yield lq.ScriptedModel(SCRIPT, seed=seed, certainty=certainty)


def finished(source: str, model: lq.ScriptedModel | None, **options: Any) -> lq.Result | None:
    """None where the condition cannot be met within the limits: that is said, never passed over."""
    chosen: dict[str, Any] = {} if model is None else {"model": model}
    try:
        return lq.run_sync(source, session=lq.Session(), max_tokens=MAX_TOKENS, max_backtracks=20, **chosen, **options)
    except lq.ConstraintError:
        return None
    except lq.QueryError as error:  # found before the first call
        assert "nothing can fill" in str(error)
        return None


@pytest.mark.parametrize("seed", SEEDS)
def test_every_finished_hole_meets_its_where_as_python_evaluates_it(seed: int) -> None:
    dice = random.Random(seed)
    runs = done = 0
    for _ in range(10):
        first, second = (
            Clauses(dice, "X").clause(dice.randint(1, 3)),
            Clauses(dice, "Y", ("X",)).clause(dice.randint(1, 2)),
        )
        between = dice.choice([".", " then ", "\\n- ", "", "12"])
        source = f'import re\n"Say:[X]{between}[Y]\\n" where {first} and {second}'
        for model in models(dice.randint(0, 99)):
            result = finished(source, model, decoder=dice.choice(["argmax", "sample"]), seed=dice.randint(0, 9))
            runs += 1
            if result is None:
                continue
            done += 1
            values = {name: str(result[name]) for name in ("X", "Y")}
            for clause in (first, second):
                assert eval(clause, {**PLAIN, **values}), (source, values)
            for name, clause in (("X", first), ("Y", second)):
                if result.endings[name] == "stop":
                    assert_is_first_stop(clause, name, {**PLAIN, **values}, source)
    assert done > 0.5 * runs


def assert_is_first_stop(clause: str, hole: str, names: Mapping[str, Any], source: str) -> None:
    """S13: a lone STOPS_AT that only `and` joins to the rest ends the hole where the rest first holds."""
    tree = ast.parse(clause, mode="eval").body
    parts = tree.values if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And) else [tree]
    stops = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id.startswith("STOPS")]
    phrases = [
        part.args[1].value
        for part in parts
        if isinstance(part, ast.Call)
        and ast.unparse(part.func) == "STOPS_AT"
        and isinstance(part.args[1], ast.Constant)
    ]
    if len(stops) == len(phrases) == 1:
        phrase, value = str(phrases[0]), names[hole]
        assert value.endswith(phrase), (source, value)
        for end in range(len(phrase), len(value)):
            if value[:end].endswith(phrase):
                assert not eval(clause, {**names, hole: value[:end]}), (source, value, value[:end])


@pytest.mark.parametrize("seed", range(3))
def test_tokens_are_those_that_were_chosen_for_the_hole(seed: int) -> None:
    """S15: in the result they stand beside the hole's name. Nothing stands before it, so none of them began there."""
    dice = random.Random(seed)
    for _ in range(12):
        least = dice.randint(0, 4)
        most = least + dice.randint(0, 3)
        rest = dice.choice(["", " and 'a' in X", " and len(X) > 7", " and len(WORDS(X)) == 2", " and not '.' in X"])
        for model in models(dice.randint(0, 99)):
            source = f'"[X]" where {least} <= len(TOKENS(X)) <= {most}{rest}'
            result = finished(source, model, decoder=dice.choice(["argmax", "sample"]))
            if result is not None:
                chosen = [token for token in result.tokens if token.hole == "X" and token.fate == "kept"]
                names = {**PLAIN, "X": result["X"], "TOKENS": lambda text, chosen=chosen: chosen}
                assert eval(source.partition("where ")[2], names), (source, result["X"], chosen)
