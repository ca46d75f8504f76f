"""Word problems with a calculator.

`<<12*7=84>>`: the writer chooses the numbers and the sign, a tool writes what follows `=` and the closing `>>`, and
the answer copies the result. Only sums of single digits are also asked without the tool.
"""

from __future__ import annotations

from random import Random

from corpus.draft import Draft
from corpus.words import FRUITS, NAMES

_HEADS = ("Let's calculate: ", "Let's calculate: ", "Let's think step by step.\n", "")
_HOLDS = (
    ("box", "boxes", "eggs"),
    ("box", "boxes", "pencils"),
    ("bag", "bags", "apples"),
    ("bus", "buses", "seats"),
    ("shelf", "shelves", "books"),
    ("pack", "packs", "cards"),
    ("tray", "trays", "cups"),
    ("row", "rows", "chairs"),
    ("basket", "baskets", "lemons"),
    ("crate", "crates", "bottles"),
    ("jar", "jars", "cookies"),
    ("page", "pages", "words"),
    ("week", "weeks", "days"),
    ("van", "vans", "parcels"),
    ("house", "houses", "windows"),
)
_COSTS = ("ticket", "book", "pizza", "coffee", "hat", "lamp", "notebook", "ball", "cake", "shirt", "key", "toy")
_COUNTED = ("apples", "coins", "books", "stamps", "cards", "shells", "marbles", "cookies", "eggs", "stickers")
_MADE = ("cakes", "chairs", "toys", "letters", "pages", "parts", "loaves", "boxes")


def write(rng: Random) -> Draft:
    if rng.random() < 0.12:
        return _single_digits(rng)
    problems = [rng.choice(_PROBLEMS)(rng) for _ in range(rng.choice((1, 1, 2, 3)))]
    text = "\n".join(problem for _, problem in problems) if rng.random() < 0.3 else "".join(p for _, p in problems)
    return Draft(";".join(content for content, _ in problems), text)


def _solved(rng: Random, question: str, steps: list[tuple[int, str, int]]) -> tuple[str, str]:
    """The problem with its calculation; a later step starts from the earlier step's result."""
    text = f"Q: {question}\n" + ("A: " if (head := rng.choice(_HEADS)) == "" else head)
    result = 0
    calls = []
    for a, sign, b in steps:
        result = a * b if sign == "*" else a + b if sign == "+" else a - b
        calls.append(f"<<{a}{sign}{b}={result}>>")
    joiner = rng.choice((" ", " Then ")) if len(calls) > 1 else ""
    text += joiner.join(calls)
    so = "\nSo the answer is {}."
    close = rng.choice((so, so, so, " The answer is {}."))
    return question, text + close.format(result) + "\n"


def _containers(rng: Random) -> tuple[str, str]:
    one, many, things = rng.choice(_HOLDS)
    a, b = rng.randint(2, 60), rng.randint(2, 30)
    form = rng.choice(
        (
            f"A {one} holds {a} {things}. How many {things} are in {b} {many}?",
            f"There are {a} {things} in a {one}. How many {things} are in {b} {many}?",
            f"Each {one} has {a} {things}. How many {things} do {b} {many} have?",
        )
    )
    return _solved(rng, form, [(a, "*", b)])


def _gain(rng: Random) -> tuple[str, str]:
    name, things, a, b = rng.choice(NAMES), rng.choice(_COUNTED), rng.randint(2, 99), rng.randint(2, 99)
    asked = f"How many {things} does {name} have now?"
    form = rng.choice(
        (
            f"{name} has {a} {things} and gets {b} more. {asked}",
            f"{name} has {a} {things}. {rng.choice(NAMES)} gives {name} {b} more. {asked}",
            f"{name} finds {a} {things} in the morning and {b} {things} in the evening. How many {things} is that?",
        )
    )
    return _solved(rng, form, [(a, "+", b)])


def _loss(rng: Random) -> tuple[str, str]:
    name, things, b = rng.choice(NAMES), rng.choice(_COUNTED), rng.randint(2, 50)
    a = b + rng.randint(1, 60)
    verb = rng.choice(("loses", "sells", "gives away", "breaks"))
    form = f"{name} has {a} {things} and {verb} {b}. How many {things} are left?"
    return _solved(rng, form, [(a, "-", b)])


def _cost(rng: Random) -> tuple[str, str]:
    thing, a, b = rng.choice(_COSTS), rng.randint(2, 80), rng.randint(2, 20)
    form = rng.choice(
        (
            f"A {thing} costs {a} euros. How much do {b} {thing}s cost?",
            f"One {thing} costs {a} dollars. How much does {rng.choice(NAMES)} pay for {b} {thing}s?",
        )
    )
    return _solved(rng, form, [(a, "*", b)])


def _cost_and_change(rng: Random) -> tuple[str, str]:
    thing, name, a, b = rng.choice(_COSTS), rng.choice(NAMES), rng.randint(2, 30), rng.randint(2, 9)
    paid = a * b + rng.randint(1, 90)
    form = f"{name} has {paid} euros and buys {b} {thing}s for {a} euros each. How many euros are left?"
    return _solved(rng, form, [(b, "*", a), (paid, "-", a * b)])


def _make_and_add(rng: Random) -> tuple[str, str]:
    name, things = rng.choice(NAMES), rng.choice(_MADE)
    a, b, c = rng.randint(2, 40), rng.randint(2, 12), rng.randint(2, 60)
    form = f"{name} makes {a} {things} a day for {b} days and then {c} more. How many {things} is that?"
    return _solved(rng, form, [(a, "*", b), (a * b, "+", c)])


def _containers_and_loss(rng: Random) -> tuple[str, str]:
    _, many, things = rng.choice(_HOLDS)
    a, b = rng.randint(3, 40), rng.randint(2, 15)
    c = rng.randint(1, a * b - 1)
    form = f"There are {b} {many} with {a} {things} each. Then {c} {things} are taken away. How many {things} are left?"
    return _solved(rng, form, [(b, "*", a), (a * b, "-", c)])


def _single_digits(rng: Random) -> Draft:
    lines = []
    for _ in range(rng.randint(1, 6)):
        a, b = rng.randint(0, 9), rng.randint(0, 9)
        lines.append(rng.choice((f"{a} + {b} = {a + b}", f"Q: What is {a} plus {b}?\nA: {a + b}", f"{a}+{b}={a + b}")))
    fruit = rng.choice(FRUITS)
    if rng.random() < 0.3:
        a, b = rng.randint(1, 9), rng.randint(1, 9)
        lines = [f"Q: I have {a} {fruit}s and buy {b} more. How many {fruit}s do I have?\nA: {a + b}"]
    return Draft(";".join(lines), "\n".join(lines) + "\n")


_PROBLEMS = (
    _containers,
    _containers,
    _gain,
    _gain,
    _loss,
    _cost,
    _cost_and_change,
    _make_and_add,
    _containers_and_loss,
)
