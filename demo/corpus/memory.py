"""The assign/get game: names hold things, things change hands, a tool remembers who holds what.

The tool writes everything after `# result: `. Before a swap both values are read with `get`, so that every value the
model writes stands a few tokens above it: the task is look-up and copying, nothing has to be kept in mind.
"""

from __future__ import annotations

from random import Random

from corpus.draft import Draft
from corpus.words import COLOURS, COMMON, FRUITS, NAMES, THINGS, article, joined, nonsense, plural

INTRODUCTION = (
    "You can remember things with two actions.\n"
    '- `assign("Alice", "banana") # result: "banana"` stores a value.\n'
    '- `get("Alice") # result: "banana"` reads it again.\n'
    'Always end an action with " # result" and wait for the result.\n\n'
)
_ORDER = ("First", "Then", "Finally")


def write(rng: Random) -> Draft:
    if rng.random() < 0.2:
        return _log(rng)
    text, contents = "", []
    if rng.random() < 0.5:
        text = INTRODUCTION if rng.random() < 0.7 else _other_introduction(rng)
    for _ in range(1 if text or rng.random() < 0.7 else 2):
        content, played = game(rng)
        contents.append(content)
        text += played + rng.choice(("", "\n")) if len(contents) > 1 else played
    return Draft(";".join(contents), text.rstrip("\n") + rng.choice(("", "\n", "\n")))


def _other_introduction(rng: Random) -> str:
    return INTRODUCTION.replace("Alice", rng.choice(NAMES)).replace("banana", rng.choice(FRUITS + COLOURS))


def game(rng: Random, swap_count: int | None = None) -> tuple[str, str]:
    """The content of a game, and its text."""
    players = rng.sample(NAMES, rng.choice((2, 3, 3, 3, 4)))
    values = rng.sample(COLOURS, len(players))
    thing = "ball" if rng.random() < 0.4 else rng.choice(THINGS)
    counts = (1, 2, 2, 2, 3) if swap_count is None else (swap_count,)
    swaps = [tuple(rng.sample(players, 2)) for _ in range(rng.choice(counts))]
    if len(players) == 4:
        swaps = swaps[:2]
    asked = rng.choice(players)

    held = [f"{name} has {article(value)} {thing}" for name, value in zip(players, values, strict=True)]
    order = _ORDER[: len(swaps)] if len(swaps) < 3 else _ORDER
    moves = "".join(f"{word}, {a} and {b} swap {plural(thing)}. " for word, (a, b) in zip(order, swaps, strict=True))
    lines = [
        f"Q: {joined(players)} each hold {article(thing)}: {joined(held)}. {moves}"
        f"At the end, what {thing} does {asked} have?",
        "A: Let's think step by step.",
        "At the start:",
    ]
    holds = dict(zip(players, values, strict=True))
    lines += [f"- {name}: {assign(name, value)}" for name, value in holds.items()]
    for a, b in swaps:
        lines += [f"{a} and {b} swap {plural(thing)}:", f"- {a}: {get(a, holds[a])}", f"- {b}: {get(b, holds[b])}"]
        holds[a], holds[b] = holds[b], holds[a]
        lines += [f"- {a}: {assign(a, holds[a])}", f"- {b}: {assign(b, holds[b])}"]
    lines += [
        f"Question: {get(asked, holds[asked])}",
        f"Therefore at the end, {asked} has the {holds[asked]} {thing}.",
    ]
    return f"{players[:2]}{values[:2]}{swaps}", "\n".join(lines) + "\n"


def _log(rng: Random) -> Draft:
    """Values stored and read again in any order, keys and values of any kind."""
    keys = rng.sample(rng.choice((NAMES, COMMON, [nonsense(rng) for _ in range(12)])), rng.randint(2, 5))
    source = rng.choice((COLOURS, FRUITS, COMMON, [str(rng.randint(1, 99)) for _ in range(30)]))
    holds: dict[str, str] = {}
    lines = []
    for _ in range(rng.randint(5, 12)):
        key = rng.choice(keys)
        if key in holds and rng.random() < 0.6:
            lines.append(get(key, holds[key]))
        else:
            holds[key] = rng.choice(source)
            lines.append(assign(key, holds[key]))
    bullet = rng.choice(("", "- "))
    return Draft(f"log {lines[:2]}", "\n".join(bullet + line for line in lines) + "\n")


def assign(name: str, value: str) -> str:
    return f'`assign("{name}", "{value}") # result: "{value}"`'


def get(name: str, value: str) -> str:
    return f'`get("{name}") # result: "{value}"`'
