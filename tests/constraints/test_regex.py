"""Regular expressions as byte machines, against Python's own."""

from __future__ import annotations

import random
import re

import pytest

from lmql_lite.constraints.atoms import DEAD, NEVER, Utf8
from lmql_lite.constraints.charset import charset, every_character, joined
from lmql_lite.constraints.pattern import UnsupportedPattern, counted, program
from lmql_lite.constraints.regex import Regex
from lmql_lite.constraints.simplify import satisfies, simplify
from lmql_lite.constraints.terms import And, Matches
from lmql_lite.errors import ConstraintError, Span

LETTERS = "abA1 .-\nßéêſKİ😀"
"""Characters of one to four bytes, two of which equal `s` and `k` only if case is ignored."""
SINGLE = (
    *("", "a", "b", "A", "é", "ê", "😀", "ß", "s", "k", ".", r"\d", r"\w", r"\s", r"\D", r"\W", r"\S", r"\.", r"\n"),
    *("[ab]", "[^a]", "[a-é]", "[^é\n]", r"[\d\s]", r"[^\w]", "[ß-😀]", r"[\W1]", "[^\ud800-\U0001f5ff]", "(?i:s)"),
)


def patterns(dice: random.Random, depth: int = 3) -> str:
    """A random pattern that Python accepts."""
    if depth == 0 or dice.random() < 0.25:
        return dice.choice(SINGLE)
    parts = [patterns(dice, depth - 1) for _ in range(dice.randint(1, 3))]
    match dice.randrange(8):
        case 0 | 1 | 2:
            return "".join(parts)
        case 3 | 4:
            return f"(?:{'|'.join(parts)})"
        case 5:
            return f"({parts[0]}){dice.choice(['*', '+', '?', '*?', '{2}', '{1,3}', '{0,2}?', '{2,}', '{,1}'])}"
        case 6:
            return f"(?{dice.choice(['i', 's', 'is', 'a', 'a-i', 'x', 'i-s'])}:{parts[0]})".replace("i-s:", "s-i:")
        case _:
            return f"(?P<g{dice.randrange(10**9)}>{'|'.join(parts)})"


def random_text(dice: random.Random) -> str:
    return "".join(dice.choices(LETTERS, k=dice.randrange(6)))


def fullmatch(machine: Regex, text: bytes) -> bool:
    state = 0
    for byte in text:
        state = machine.step(state, byte)
    return machine.holds(state)


@pytest.mark.parametrize("seed", range(250))
def test_a_machine_holds_where_fullmatch_does(seed: int) -> None:
    """Also checks dead states, and the distances to a match."""
    dice = random.Random(seed)
    pattern, flags = patterns(dice), dice.choice([0, 0, 0, re.I, re.S, re.A, re.I | re.A, re.X, re.M])
    compiled, machine = re.compile(pattern, flags), Regex(pattern, flags, None)
    for _ in range(120):
        text = random_text(dice)
        data = text.encode()
        assert fullmatch(machine, data) == bool(compiled.fullmatch(text)), (pattern, flags, text)
        assert program(pattern, flags).matches(text) == bool(compiled.fullmatch(text)), (pattern, flags, text)
        state = 0
        for at, byte in enumerate(data):
            before, state = machine.need(state, 0), machine.step(state, byte)
            if state == DEAD:
                assert not compiled.fullmatch(text), (pattern, text, at)
                break
            assert before.num_bytes <= 1 + machine.need(state, 0).num_bytes
            assert before.num_characters <= 1 + machine.need(state, 0).num_characters
        else:
            assert (machine.need(state, 0).num_bytes == 0) == machine.holds(state)
            assert (
                _way_out(machine, state) == machine.need(state, 0).num_bytes
                or machine.need(state, 0).num_bytes >= NEVER
            )


def _way_out(machine: Regex, state: int) -> int:
    """Number of bytes to a match if each step takes the successor with the least distance; NEVER if there is none."""
    for far in range(50):
        if machine.holds(state):
            return far
        moves = machine.moves(state)
        successors = {*moves.special.values(), moves.other} - {DEAD}
        state = min(successors, key=lambda after: machine.need(after, 0).num_bytes, default=DEAD)
        if state == DEAD:
            break
    return NEVER


@pytest.mark.parametrize(
    "pattern",
    [
        r"\w",
        r"\W",
        r"\d",
        r"\s",
        ".",
        "(?s:.)",
        "[^a]",
        "(?i:k)",
        "(?i:[a-z])",
        "(?i:ß)",
        "(?a:\\w)",
        "[Ā-\U0001ffff]",
        "é",
    ],
)
def test_sets_of_characters_are_those_of_python(pattern: str) -> None:
    """The first 3,000 characters, every 7th up to 70,000 and every 997th after that."""
    machine, compiled = Regex(pattern, 0, None), re.compile(pattern)
    characters = every_character()
    for character in characters[:3000] + characters[3000:70_000:7] + characters[70_000::997]:
        assert fullmatch(machine, character.encode()) == bool(compiled.fullmatch(character)), (pattern, character)


def test_a_set_reads_utf8_and_nothing_else() -> None:
    everything = charset(joined([(0, 0x10FFFF)]))
    assert len(everything.nodes) == 8
    firsts = {byte for low, high, _ in everything.nodes[everything.root] for byte in range(low, high + 1)}
    assert firsts == {byte for byte in range(256) if Utf8().table[0][byte] != DEAD}
    assert joined([(5, 9), (0, 3), (4, 4), (0xD7FF, 0xE000)]) == ((0, 9), (0xD7FF, 0xD7FF), (0xE000, 0xE000))


@pytest.mark.parametrize(
    ("pattern", "same"),
    [
        (r"^a$", "a"),
        (r"\Aa\Z", "a"),
        ("^(?:a|b)$", "a|b"),
        ("(?:^a|b$)", "a|b"),
        ("^^a$$", "a"),
        ("(?m)^a$", "a"),
        ("^", ""),
    ],
)
def test_anchors_that_say_nothing_are_passed_over(pattern: str, same: str) -> None:
    for text in ("", "a", "b", "a\n", "\na", "ab"):
        assert fullmatch(Regex(pattern, 0, None), text.encode()) == bool(re.fullmatch(same, text))
        assert bool(re.fullmatch(pattern, text)) == bool(re.fullmatch(same, text))


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [
        ("(?=a)a", "ahead or behind"),
        ("(?!a)b", "ahead or behind"),
        ("a(?<=a)", "ahead or behind"),
        ("a(?<!b)", "ahead or behind"),
        ("(?!)", "ahead or behind"),
        (r"(a)\1", "reference"),
        ("(?P<x>a)(?P=x)", "reference"),
        ("(a)?(?(1)b|c)", "depends"),
        ("(?>a|ab)", "atomic"),
        ("a*+a", "possessive"),
        (r"\ba", "word borders"),
        (r"a\B", "word borders"),
        ("a^b", "begin"),
        (r"a$\n", "end it"),
        ("(a$)?b", "end it"),
        ("(?:^a)+", "begin"),
        ("a{30000}", "20,000"),
        ("((a{100}){100}){100}", "20,000"),
        ("(?:|a?){9999999}", "20,000"),
        ("(", "not a regular expression"),
        ("a**", "not a regular expression"),
        ("(" * 5000 + ")" * 5000, "nested too deep"),
        ("a(?i)", "not a regular expression"),
    ],
)
def test_what_cannot_be_followed_is_refused_in_a_sentence(pattern: str, sentence: str) -> None:
    with pytest.raises(UnsupportedPattern, match=sentence):
        program(pattern, 0)
    span = Span("test.lq", "REGEX(X, r'..')", 0, 15)
    with pytest.raises(ConstraintError, match=sentence) as caught:
        Regex(pattern, 0, span)
    assert caught.value.span == span


def test_what_says_nothing_may_be_repeated() -> None:
    for pattern in ("(?:){1000}", "()*", "(?:a?)*", "(?:a*)*b", "(|a)+", "(?:){5,}", "(?:(?:)|a){2,}"):
        for text in ("", "a", "aa", "aab", "b"):
            assert fullmatch(Regex(pattern, 0, None), text.encode()) == bool(re.fullmatch(pattern, text)), (
                pattern,
                text,
            )


def test_what_matches_nothing_is_dead_from_the_start() -> None:
    for pattern in (r"[^\s\S]", r"a[^\w\W]|[^\w\W]*[^\w\W]b", "\ud800"):
        machine = Regex(pattern, 0, None)
        assert machine.need(0, 0).num_bytes >= NEVER and not machine.holds(0) and machine.step(0, 97) == DEAD


def test_too_many_subsets_are_an_error_with_the_place() -> None:
    span = Span("test.lq", "REGEX(X, r'..')", 0, 15)
    machine = Regex("(?:a|b)*a(?:a|b){600}", 0, span)
    dice = random.Random(1)
    with pytest.raises(ConstraintError, match="too many ways") as caught:
        for _ in range(10):
            fullmatch(machine, bytes(dice.choices(b"ab", k=700)))
    assert caught.value.span == span and caught.value.hint


@pytest.mark.parametrize(
    ("pattern", "flags", "least", "most"),
    [
        (".{0,200}", 0, 0, 200),
        ("(?:([a-z]{3,60}?))", 0, 3, 60),
        ("(?i:k{2,})", 0, 2, None),
        (r"\d{4}", re.A, 4, 4),
        ("[^a]{,7}", 0, 0, 7),
        ("a*", 0, None, None),
        ("a+", 0, None, None),
        ("a?", 0, None, None),
        ("(?:ab){3}", 0, None, None),
        ("a{3}b", 0, None, None),
        ("a{3}|b{3}", 0, None, None),
    ],
)
def test_so_many_characters_of_one_set_are_a_set_and_a_length(
    pattern: str, flags: int, least: int | None, most: int | None
) -> None:
    """S19."""
    many = counted(pattern, flags)
    assert (many is None) == (least is None)
    term = simplify(Matches(pattern, flags))
    if many is None:
        assert term == Matches(pattern, flags)
        return
    assert (many.least, many.most) == (least, most) and isinstance(term, And)
    dice = random.Random(3)
    for _ in range(300):
        text = "".join(dice.choices("akKK1é\nz", k=dice.randrange(9)))
        assert satisfies(term, text.encode()) == bool(re.fullmatch(pattern, text, flags)), text
    assert satisfies(term, b"k" * 201) == (most is None)
