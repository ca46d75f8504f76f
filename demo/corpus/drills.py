"""Copying and looking up, in many shapes: nothing here can be known, all of it stands in the text above."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from corpus.draft import Draft
from corpus.words import ANIMALS, CITIES, COLOURS, COMMON, FRUITS, NAMES, THINGS, article, joined, nonsense

_SUBJECTS = (
    "the fox",
    "my cat",
    "a bird",
    "the old man",
    "our train",
    "the moon",
    "this",
    "the king",
    "a small dog",
    "the team",
)
_VERBS = ("sees", "likes", "carries", "finds", "paints", "wants", "follows", "hides", "is", "loses")
_OBJECTS = (
    "a test",
    "the river",
    "a red hat",
    "two apples",
    "the last train",
    "a green door",
    "some bread",
    "a silver key",
    "nothing",
    "the blue house",
    "a good idea",
    "the way home",
)


def write(rng: Random) -> Draft:
    return rng.choice(_DRILLS)(rng)


def any_words(rng: Random) -> list[str]:
    """A table to draw keys or values from; every third table is made of words that mean nothing."""
    tables: tuple[list[str], ...] = (NAMES, COLOURS, FRUITS, ANIMALS, COMMON, CITIES, THINGS)
    if rng.random() < 0.35:
        return list(dict.fromkeys(nonsense(rng) for _ in range(16)))
    if rng.random() < 0.25:
        return [str(number) for number in rng.sample(range(1, 1000), 16)]
    return rng.choice(tables)


def any_pairs(rng: Random, largest: int = 7) -> dict[str, str]:
    keys, values = any_words(rng), any_words(rng)
    chosen = rng.sample(keys, min(rng.randint(2, largest), len(keys)))
    return {key: rng.choice([value for value in values if value != key]) for key in chosen}


def _lookup(rng: Random) -> Draft:
    """Pairs in one notation, then questions about several of them in another."""
    pairs = any_pairs(rng)
    sign, between = rng.choice((("=", "; "), (": ", ", "), (" = ", "\n"), (" -> ", "\n"), (" is ", ", "), ("=", " ")))
    head = rng.choice(("Remember: ", "Remember:\n", "", "Values: ", "Note: "))
    ask: Callable[[str, str], str] = rng.choice(
        (
            lambda key, value: f"{key}? {value}",
            lambda key, value: f"Q: {key}?\nA: {value}",
            lambda key, value: f"{key}{sign}{value}",
            lambda key, value: f"What is {key}? {value}",
        )
    )
    asked = [rng.choice(tuple(pairs)) for _ in range(rng.randint(2, 6))]
    text = head + between.join(f"{key}{sign}{value}" for key, value in pairs.items()) + "\n"
    return draft_of(pairs, text + "\n".join(ask(key, pairs[key]) for key in asked) + "\n")


def _table(rng: Random) -> Draft:
    names = rng.sample(NAMES, rng.randint(2, 5))
    first, second = {n: rng.choice(COLOURS) for n in names}, {n: rng.choice(CITIES) for n in names}
    text = "name | colour | city\n" + "".join(f"{n} | {first[n]} | {second[n]}\n" for n in names)
    for _ in range(rng.randint(1, 4)):
        name = rng.choice(names)
        field, value = rng.choice((("colour", first[name]), ("city", second[name])))
        text += rng.choice((f"{field} of {name}: {value}\n", f"Q: Which {field} has {name}?\nA: {value}\n"))
    return draft_of(first, text)


def _holdings(rng: Random) -> Draft:
    names = rng.sample(NAMES, rng.randint(2, 4))
    held = {name: f"{article(rng.choice(COLOURS))} {rng.choice(THINGS)}" for name in names}
    text = joined([f"{name} has {thing}" for name, thing in held.items()]) + ".\n"
    for name in rng.sample(names, rng.randint(1, len(names))):
        text += rng.choice((f"Q: What does {name} have?\nA: {held[name]}\n", f"Q: Who has {held[name]}?\nA: {name}\n"))
    return draft_of(held, text)


def _swap(rng: Random) -> Draft:
    """One exchange, told and then read off."""
    a, b = rng.sample(NAMES, 2)
    x, y = rng.sample(COLOURS + FRUITS, 2)
    return draft_of({a: x, b: y}, f"{a}: {x}\n{b}: {y}\n{a} and {b} swap.\n{a}: {y}\n{b}: {x}\n")


def _repeat(rng: Random) -> Draft:
    words = [rng.choice(table) for table in [any_words(rng)] for _ in range(rng.randint(2, 10))]
    line = rng.choice((" ", ", ", "-", "\n")).join(words)
    shape = rng.choice(
        ("Repeat: {0}\n{0}\n", "Copy:\n{0}\nCopy:\n{0}\n", "{0}\n{0}\n{0}\n", 'Say "{0}"\n{0}\n', "> {0}\n< {0}\n")
    )
    return Draft(line, shape.format(line))


def _say(rng: Random) -> Draft:
    sentence = f"{rng.choice(_SUBJECTS)} {rng.choice(_VERBS)} {rng.choice(_OBJECTS)}"
    if rng.random() < 0.3:
        sentence = f"{rng.choice(NAMES)} {rng.choice(_VERBS)} {rng.choice(_OBJECTS)}"
    said = sentence[0].upper() + sentence[1:]
    shape = rng.choice(
        ("Say '{0}':\n{1}", "Say '{0}':\n{1}", "Say '{0}': {1}", 'Repeat "{0}": {1}', "Say '{0}':\n\n{1}")
    )
    return Draft(sentence, shape.format(sentence, said) + rng.choice(("", ".", "\n")))


def _dictionary(rng: Random) -> Draft:
    """Translation out of a little dictionary, word by word."""
    pairs = {nonsense(rng): word for word in rng.sample(COMMON, rng.randint(3, 6))}
    text = "Dictionary: " + ", ".join(f"{key} means {value}" for key, value in pairs.items()) + ".\n"
    for _ in range(rng.randint(1, 3)):
        chosen = rng.sample(tuple(pairs), min(len(pairs), rng.randint(1, 3)))
        text += f"{' '.join(chosen)} -> {' '.join(pairs[key] for key in chosen)}\n"
    return draft_of(pairs, text)


def _copied_lines(rng: Random) -> Draft:
    """Lines that come again in another order: the next line can be told from its first word."""
    pairs = any_pairs(rng, 5)
    verb = rng.choice(("likes", "has", "wants", "sees", "goes with"))
    lines = [f"{key} {verb} {value}." for key, value in pairs.items()]
    text = "\n".join([*lines, *rng.sample(lines, len(lines)), *rng.sample(lines, len(lines))]) + "\n"
    return draft_of(pairs, text)


def draft_of(pairs: dict[str, str], text: str) -> Draft:
    return Draft(str(list(pairs.items())[:2]), text)


_DRILLS = (_lookup, _lookup, _table, _holdings, _swap, _repeat, _say, _dictionary, _copied_lines)
