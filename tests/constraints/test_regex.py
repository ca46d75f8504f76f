"""Regular expressions as programs of characters, against Python's own."""

from __future__ import annotations

import random
import re

import pytest

from lmql_lite.constraints.automaton import FAR, Automaton, PatternMachine
from lmql_lite.constraints.counts import DEAD
from lmql_lite.constraints.pattern import NEVER, UnsupportedPattern, counted, every_character, joined, program
from lmql_lite.constraints.simplify import satisfies, simplify
from lmql_lite.constraints.terms import And, Matches, Not
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


@pytest.mark.parametrize("seed", range(250))
def test_a_machine_holds_where_fullmatch_does(seed: int) -> None:
    """Also checks dead states, and the distances to a match."""
    dice = random.Random(seed)
    pattern, flags = patterns(dice), dice.choice([0, 0, 0, re.I, re.S, re.A, re.I | re.A, re.X, re.M])
    compiled, machine = re.compile(pattern, flags), PatternMachine(program(pattern, flags))
    for _ in range(60):
        text = random_text(dice)
        assert program(pattern, flags).matches(text) == bool(compiled.fullmatch(text)), (pattern, flags, text)
        state = machine.start
        for character in text:
            characters, num_bytes = machine.need(state) if state != DEAD else (NEVER, NEVER)
            state = machine.step(state, character)
            if state == DEAD:
                assert not compiled.fullmatch(text), (pattern, text)
                break
            after = machine.need(state)
            assert (characters, num_bytes) <= (1 + after[0], len(character.encode()) + after[1])
        else:
            assert machine.holds(state) == bool(compiled.fullmatch(text)), (pattern, flags, text)
            assert machine.holds(state) == (machine.need(state) == (0, 0))


@pytest.mark.parametrize(
    "pattern",
    [r"\w", r"\W", r"\d", r"\s", ".", "(?s:.)", "[^a]", "(?i:k)", "(?i:[a-z])", "(?i:ß)", r"(?a:\w)", "[Ā-\U0001ffff]",
     "é"],
)  # fmt: skip
def test_sets_of_characters_are_those_of_python(pattern: str) -> None:
    """The first 3,000 characters, every 7th up to 70,000 and every 997th after that."""
    ours, compiled = program(pattern, 0), re.compile(pattern)
    characters = every_character()
    for character in characters[:3000] + characters[3000:70_000:7] + characters[70_000::997]:
        assert ours.matches(character) == bool(compiled.fullmatch(character)), (pattern, character)


def test_ranges_are_sorted_and_merged_and_have_no_surrogates() -> None:
    assert joined([(5, 9), (0, 3), (4, 4), (0xD7FF, 0xE000)]) == ((0, 9), (0xD7FF, 0xD7FF), (0xE000, 0xE000))


@pytest.mark.parametrize(
    ("pattern", "same"),
    [(r"^a$", "a"), (r"\Aa\Z", "a"), ("^(?:a|b)$", "a|b"), ("(?:^a|b$)", "a|b"), ("^^a$$", "a"), ("(?m)^a$", "a"),
     ("^", "")],
)  # fmt: skip
def test_anchors_that_say_nothing_are_passed_over(pattern: str, same: str) -> None:
    for text in ("", "a", "b", "a\n", "\na", "ab"):
        assert program(pattern, 0).matches(text) == bool(re.fullmatch(same, text))
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


def test_a_pattern_of_a_hole_that_cannot_be_followed_is_an_error_with_the_place() -> None:
    span = Span("test.lq", "REGEX(X, r'..')", 0, 15)
    with pytest.raises(ConstraintError, match="ahead or behind") as caught:
        Automaton(Matches("(?=a)a", span=span))
    assert caught.value.span == span


def test_what_says_nothing_may_be_repeated() -> None:
    for pattern in ("(?:){1000}", "()*", "(?:a?)*", "(?:a*)*b", "(|a)+", "(?:){5,}", "(?:(?:)|a){2,}"):
        for text in ("", "a", "aa", "aab", "b"):
            assert program(pattern, 0).matches(text) == bool(re.fullmatch(pattern, text)), (
                pattern,
                text,
            )


def test_what_matches_nothing_is_dead_from_the_start() -> None:
    for pattern in (r"[^\s\S]", r"a[^\w\W]|[^\w\W]*[^\w\W]b", "\ud800"):
        assert Automaton(Matches(pattern)).shortest >= FAR


def test_too_many_subsets_are_an_error_with_the_place() -> None:
    span = Span("test.lq", "REGEX(X, r'..')", 0, 15)
    automaton = Automaton(Not(Matches("(?:a|b)*a(?:a|b){600}", span=span), span))
    with pytest.raises(ConstraintError, match=r"more than .* states") as caught:
        assert automaton.shortest
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
