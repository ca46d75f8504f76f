"""The assign/get game, sentence by sentence: after each sentence the actions it asks for, then `- done`.

Whoever tells the story may write the sentences one by one and let the model act; every name and colour that the model
has to copy stands in the sentence or the results right above.
"""

from __future__ import annotations

from random import Random

from corpus.draft import Draft
from corpus.memory import INTRODUCTION, assign, get
from corpus.words import COLOURS, NAMES, THINGS, article, plural


def write(rng: Random) -> Draft:
    players = rng.sample(NAMES, rng.choice((2, 3, 3, 3, 4)))
    colours = rng.sample(COLOURS, len(players))
    thing = "ball" if rng.random() < 0.5 else rng.choice(THINGS)
    holds: dict[str, str] = {}
    lines: list[str] = []
    for name, colour in zip(players, colours, strict=True):
        holds[name] = colour
        lines += [f"{name} has {article(colour)} {thing}.", assign(name, colour)]
    asked: list[str] = []
    for _ in range(rng.choice((1, 2, 2, 2, 3))):
        a, b = rng.sample(players, 2)
        lines += [f"{a} and {b} swap {plural(thing)}.", get(a, holds[a]), get(b, holds[b])]
        holds[a], holds[b] = holds[b], holds[a]
        lines += [assign(a, holds[a]), assign(b, holds[b])]
        if rng.random() < 0.2:
            asked.append(rng.choice(players))
            lines += _question(asked[-1], holds[asked[-1]], thing)
    asked.append(rng.choice(players))
    lines += _question(asked[-1], holds[asked[-1]], thing)
    text = "".join(f"- {line}\n" if line.startswith("`") else f"{line}\n" for line in _with_done(lines))
    introduction = INTRODUCTION if rng.random() < 0.35 else ""
    return Draft(f"{players[:2]}{colours[:2]}{asked}", introduction + text)


def _question(name: str, colour: str, thing: str) -> list[str]:
    return [f"What {thing} does {name} have?", get(name, colour), f"Therefore, {name} has the {colour} {thing}."]


def _with_done(lines: list[str]) -> list[str]:
    """The lines, with `- done` where the actions of a sentence end."""
    result = []
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        result.append(line)
        if line.startswith("`") and not following.startswith("`"):
            result.append("- done")
    return result
