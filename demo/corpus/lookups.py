"""Looking up, again and again: few things, told once and then asked for many times.

Denser than the drills, for the second half of the training, when the formats are known and only this is missing.
"""

from __future__ import annotations

from random import Random

from corpus.draft import Draft
from corpus.drills import any_pairs, draft_of
from corpus.memory import game
from corpus.words import ANIMALS, COLOURS, COMMON, FRUITS, NAMES, THINGS, article, joined


def write(rng: Random) -> Draft:
    return rng.choice(_LOOKUPS)(rng)


def _stream(rng: Random) -> Draft:
    """The same few pairs again and again in any order: after its first time every value can be looked up."""
    pairs = any_pairs(rng, 6)
    sign = rng.choice(("=", ": ", " ", " -> ", " is ", '("', " has a "))
    close = '")' if sign == '("' else rng.choice(("", "", "."))
    between = rng.choice((" ", "; ", ", ", "\n", "\n- ")) if sign != " " else rng.choice((", ", "\n", " | "))
    keys = [*pairs, *(rng.choice(tuple(pairs)) for _ in range(rng.randint(8, 22)))]
    return draft_of(pairs, between.join(f"{key}{sign}{pairs[key]}{close}" for key in keys) + "\n")


def _phrases(rng: Random) -> Draft:
    """A few phrases of words thrown together, repeated in any order: what follows a word followed it before."""
    words = iter(rng.sample(COMMON + FRUITS + ANIMALS + COLOURS, 12))
    phrases = [" ".join(word for word, _ in zip(words, range(rng.randint(2, 4)), strict=False)) for _ in range(3)]
    said = [*phrases, *(rng.choice(phrases) for _ in range(rng.randint(4, 10)))]
    return Draft(";".join(phrases), rng.choice((" ", ", ", "\n", ". ")).join(said) + "\n")


def _owners(rng: Random) -> Draft:
    """Who has what, told once and then told again in other words, many times."""
    names = rng.sample(NAMES, rng.randint(2, 5))
    thing = rng.choice(THINGS)
    held = dict(zip(names, rng.sample(COLOURS, len(names)), strict=True))
    text = joined([f"{name} has {article(colour)} {thing}" for name, colour in held.items()]) + ".\n"
    shapes = (
        "{0}: {1}",
        "{0} has the {1} {2}.",
        'get("{0}") # result: "{1}"',
        "Q: What {2} does {0} have?\nA: {1}",
        "{1}: {0}",
    )
    shape = rng.choice(shapes)
    for _ in range(rng.randint(3, 9)):
        name = rng.choice(names)
        text += shape.format(name, held[name], thing) + "\n"
        if rng.random() < 0.15:
            shape = rng.choice(shapes)
    return draft_of(held, text)


def _short_game(rng: Random) -> Draft:
    """The game of the memory task with one swap or none."""
    return Draft(*game(rng, swap_count=rng.choice((0, 0, 1))))


_LOOKUPS = (_stream, _stream, _phrases, _owners, _owners, _short_game)
