"""Server grammars allow the texts that our own matchers accept. `test_masks.py` tests the matchers."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import pytest

from lmql_lite.constraints.automaton import Automaton
from lmql_lite.constraints.language import Language, Rule, smallest
from lmql_lite.constraints.matcher import Engine, HoleMatcher
from lmql_lite.constraints.server_grammar import Pushed, pushed
from lmql_lite.constraints.terms import (
    ANYTHING,
    And,
    Choice,
    Lacks,
    Length,
    Matches,
    Not,
    Or,
    Stop,
    Term,
    atoms,
    contains,
)
from lmql_lite.constraints.vocabulary import Vocabulary
from lmql_lite.errors import ConstraintError, Span
from tests.constraints.trees import Trees

ENGINE = Engine(Vocabulary((None, *(bytes([byte]) for byte in range(256))), frozenset({0})))
HOLE = Span("test.lq", "[X]", 0, 3)
MANY = 10**6
"""Number of tokens that is no limit."""
LETTERS = ("ab", "abé", "ab .", "aé\u2003.", "ab\n.", "a b", "ab1", "a😀.")
"""Sets of letters, one of which makes up the phrases and texts of a segment."""
SEGMENTS = 20
BUDGET = 300

Segment = Sequence[Term | bytes]


def language(*parts: Term | bytes, budget: int = BUDGET) -> Pushed | None:
    return pushed([part if isinstance(part, bytes) else Automaton(part) for part in parts], budget)


def made(*parts: Term | bytes, budget: int = BUDGET) -> Language:
    """Language of a segment, which must be exact."""
    found = language(*parts, budget=budget)
    assert found is not None and found.exact
    return found.language


def opened(term: Term) -> HoleMatcher:
    matcher = ENGINE.matcher(term, b"", MANY, "X", HOLE)
    assert isinstance(matcher, HoleMatcher)
    return matcher


def read(matchers: Sequence[HoleMatcher | bytes], text: bytes) -> list[str] | None:
    """Endings of a segment's holes in a whole text; None if the matchers do not accept the text.

    Bytes that a stop cuts off a value belong to the following part (S14), except those of the last part.
    """
    at = 0
    endings: list[str] = []
    for part in matchers:
        if isinstance(part, bytes):
            if not text.startswith(part, at):
                return None
            at += len(part)
            continue
        matcher, start, last = part, at, part is matchers[-1]
        while matcher.ending is None and at < len(text):
            try:
                matcher = matcher.advance(text[at : at + 1], tokens=0)
            except ValueError:
                return None
            at += 1
        if matcher.ending is None and not (last and matcher.may_end):
            return None
        if last and matcher.ending == "end-of-text":
            return None  # the text is longer than the hole can be
        endings.append(matcher.ending or "end-of-text")
        at = at if last else start + len(matcher.value)
    return endings if at == len(text) else None


# All segments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 25))])
def test_a_language_has_the_texts_that_the_matchers_take(seed: int) -> None:
    """S13-S18: exactly these texts, or more if the language is not exact."""
    dice = random.Random(seed)
    exact = loosened = taken = 0
    while exact < SEGMENTS:
        letters = dice.choice(LETTERS)
        terms = some_segment(dice, letters)
        if terms is None:
            continue
        matchers = [part if isinstance(part, bytes) else opened(part) for part in terms]
        parts = [part if isinstance(part, bytes) else Automaton(part) for part in terms]
        whole = pushed(parts, BUDGET)
        smaller = [pushed(parts, budget) for budget in (40, 8, 3)]
        texts = {text for each in (whole, *smaller) if each for text in some_texts(dice, each.language, letters)}
        endings = {text: read(matchers, text.encode()) for text in texts}
        if whole is None:
            assert not any(map(whole_texts_only, endings.values())), parts
            continue
        exact += whole.exact
        taken += sum(map(whole_texts_only, endings.values()))
        for found in filter(None, (whole, *smaller)):
            loosened += not found.exact
            for text, how in endings.items():
                if found.exact:
                    assert found.language.accepts(text) == (how is not None), (terms, text)
                elif how is not None and not bounded(terms, how):
                    assert found.language.accepts(text), (terms, text)
    assert taken > 10 * SEGMENTS and loosened > SEGMENTS // 2


def whole_texts_only(endings: list[str] | None) -> bool:
    return endings is not None


def bounded(terms: Segment, endings: list[str]) -> bool:
    """True if a hole with stops ended without one because it could not go on."""
    holes = [part for part in terms if not isinstance(part, bytes)]
    return any(
        ending in ("bound", "forced") and any(isinstance(atom, Stop) for atom in atoms(hole))
        for hole, ending in zip(holes, endings, strict=True)
    )


def some_segment(dice: random.Random, letters: str) -> list[Term | bytes] | None:
    """At most three holes with text between them; None if one of them cannot be filled."""
    trees = Trees(dice, letters)
    parts: list[Term | bytes] = []
    for at in range(dice.choice([1, 1, 2, 3])):
        if at or dice.random() < 0.5:
            parts.append("".join(dice.choices(letters, k=dice.randint(1, 3))).encode())
        term = trees.term(dice.choice([1, 2, 2, 3]))
        if dice.random() < 0.6:
            term = And((term, Stop("".join(dice.choices(letters, k=dice.randint(1, 2))).encode(), dice.random() < 0.6)))
        try:
            opened(term)
        except ConstraintError:
            return None
        parts.append(term)
    if dice.random() < 0.3:
        parts.append("".join(dice.choices(letters, k=dice.randint(1, 2))).encode())
    return parts


def some_texts(dice: random.Random, among: Language, letters: str) -> set[str]:
    """Texts of the language, mostly of these letters, and variants with a letter inserted, removed or replaced."""
    texts = {"", "".join(dice.choices(letters, k=5))}
    for _ in range(20):
        text, rule = "", among.rules[0]
        while rule.edges and len(text) < 30 and not (rule.accepts and dice.random() < 0.3):
            usual = [edge for edge in rule.edges if any(edge[0] <= ord(letter) <= edge[1] for letter in letters)]
            low, high, after = dice.choice(usual if usual and dice.random() < 0.9 else rule.edges)
            fitting = [letter for letter in letters if low <= ord(letter) <= high]
            text += dice.choice(fitting or [chr(low), chr(high)])
            rule = among.rules[after]
        place, letter = dice.randint(0, len(text)), dice.choice(letters)
        texts |= {text, text[:place] + letter + text[place + dice.randint(0, 1) :], text[:place] + text[place + 1 :]}
    return texts


@pytest.mark.parametrize("seed", range(20))
def test_every_rule_leads_to_an_end_and_no_two_are_alike(seed: int) -> None:
    """S19: no rule is a dead end."""
    dice = random.Random(seed)
    sets = [[(97, 97), (98, 98)], [(97, 98)], [(0, 0xD7FF), (0xE000, 0x10FFFF)], [(97, 97), (99, 0xD7FF)]]
    rules = [
        Rule(tuple((low, high, dice.randrange(5)) for low, high in dice.choice(sets)), dice.random() < 0.3)
        for _ in range(5)
    ]
    found = smallest(rules)
    assert future(found, 0) == future(Language(tuple(rules)), 0)
    futures = [future(found, number) for number in range(len(found.rules))]
    assert len(set(futures)) == len(futures)
    assert found.is_empty or all(map(any, futures))


WORDS = [""]
for word in WORDS:
    if len(word) < 4:
        WORDS += [word + letter for letter in "abc😀"]


def future(among: Language, number: int) -> tuple[bool, ...]:
    """For each of WORDS, True if the text leads from a rule to an end."""
    rules = list(among.rules)
    first = Language((rules[number], *rules))
    moved = [
        Rule(tuple((low, high, after + 1) for low, high, after in rule.edges), rule.accepts) for rule in first.rules
    ]
    return tuple(map(Language(tuple(moved)).accepts, WORDS))


# By example ----------------------------------------------------------------------------------------------------------

JOKE = And((Length(0, 119), Stop(b"?", inclusive=True)))
PUNCHLINE = And((Stop(b"\n", inclusive=True), Length(2, None)))
AT, BEFORE = True, False


@pytest.mark.parametrize(
    ("parts", "inside", "outside"),
    [
        pytest.param([b"ab"], ["ab"], ["", "a", "abc"], id="text alone"),
        pytest.param([], [""], ["a"], id="nothing"),
        pytest.param([b"Q:", ANYTHING], ["Q:", "Q:é😀\n"], ["Q", "A:"], id="a hole without conditions"),
        pytest.param([Stop(b"\n", AT)], ["", "a", "a\n"], ["a\n\n", "a\nb"], id="the text ends where a stop ends it"),
        pytest.param(
            [b"Q:", JOKE, b"\nA:", PUNCHLINE],
            ["Q:Why?\nA:So.\n", "Q:?\nA:So", "Q:" + 119 * "x" + "\nA:ok", "Q:Why?\nA:\n\n"],
            ["Q:Why\nA:So", "Q:Why?\nA:", "Q:Why?\nA:\n", "Q:" + 120 * "x" + "?\nA:ok", "Q:Why?\nA:So\n\n"],
            id="two holes and a text between them",
        ),
        pytest.param(
            [Or((Stop(b".", AT), Stop(b"!?", AT))), b"-"],
            ["a.-", "a!?-", "a!-!?-", "!!?-"],
            ["a-", "a!-", "a.!?-", "a?-"],
            id="two stops",
        ),
        pytest.param(
            [Stop(b"</s>", AT), b"\n"],
            ["</s>\n", "<</s>\n", "a</</s>\n", "</s</s>\n", "\n</s>\n"],
            ["</s>", "</s>\n\n", "</s></s>\n", "a\n"],
            id="a stop of several characters",
        ),
        pytest.param(
            [Stop(b"\n\n", AT), b"-"], ["\n\n-", "a\nb\n\n-"], ["\n\n\n-", "a\n-"], id="an empty line as a stop"
        ),
        pytest.param(
            [And((Stop(b".", AT), Length(8, None))), b"-"], ["Short. Longer.-"], ["Short.-", "Short. Longer. No.-"],
            id="a stop waits for its guard",
        ),
        pytest.param(
            [And((Stop(b"END", BEFORE), Length(0, 3))), b"END."],
            ["END.", "abcEND."],
            ["abcdEND.", "abcEND", "abc.", "aEND."],
            id="STOPS_BEFORE what follows",
        ),
        pytest.param(
            [And((Stop(b"ab", BEFORE), Length(0, 3)))], ["", "bba", "bab"], ["bbab", "abb"],
            id="a phrase that is begun at the bound of the last hole",
        ),
        pytest.param(
            [Stop(b"\n-", BEFORE), b"\n", And((Stop(b"\n", AT), Length(0, 5)))],
            ["ab\n-", "ab\n-cd\n", "a\nb\n-cd"],
            ["ab\n", "ab\ncd", "ab\n-cdefg"],
            id="what is cut off begins the next hole",
        ),
        pytest.param([Stop(b"\n", BEFORE), b" A:"], [], ["a A:", "a\n A:"], id="STOPS_BEFORE what does not follow"),
        pytest.param(
            [Stop(b"[.!?]", BEFORE, 0), b"! "],
            ["ab! "],
            ["ab. ", "ab? ", "a.b! "],
            id="a pattern that is cut off",
        ),
        pytest.param(
            [And((Stop(b"END", BEFORE), Length(2, 5)))], ["ab", "abcd", "abEND"], ["a", "abcdef", "abENDx"],
            id="the phrase before the end may be said",
        ),
        pytest.param([Choice((b"cat", b"cats", b"dog"))], ["cat", "cats", "dog"], ["ca", "catsdog", ""], id="a choice"),
        pytest.param(
            [Choice((b"cat", b"cats")), b"s\n"], ["catss\n"], ["cats\n", "cat\n"],
            id="a choice goes on as far as it can",
        ),
        pytest.param([Matches("[0-9]+"), b"."], ["7.", "42."], [".", "7", "7.5"], id="a pattern ends at what follows"),
        pytest.param(
            [Matches("[0-9]{4}(-[0-9]{2}){2}"), b"\n"], ["2024-12-31\n"], ["2024-12\n", "2024-12-311\n"],
            id="counted repetition",
        ),
        pytest.param([Matches("(?:ab){2,3}")], ["abab", "ababab"], ["ab", "aba", "abababab"], id="repeated groups"),
        pytest.param([Matches("[😀-🙏]{1,2}"), b"!"], ["😀!", "😀🙏!"], ["!", "😀😀😀!", "a!"], id="emoji"),
        pytest.param([Matches(r"\w+"), b" "], ["é ", "日本 ", "_1 "], [" ", "a-b "], id="letters of all scripts"),
        pytest.param(
            [And((Not(contains(b"ab")), Stop(b"\n", AT)))], ["ba\n", "aa", "acb"], ["ab", "aab\n"], id="a banned phrase"
        ),
        pytest.param(
            [And((contains(b"ab"), Length(0, 3)))], ["ab", "aab", "éab"], ["a", "aabb", "ba"], id="a demanded phrase"
        ),
        pytest.param(
            [And((Length(2, 2, "words"), Stop(b".", AT))), b"-"], ["a b.-", " a\tb.-", "a. b.-"], ["a.-", "a b c.-"],
            id="words",
        ),
        pytest.param([Length(3, 3), b"-"], ["é😀a-", "----"], ["ab-", "abcd-"], id="a length that ends by itself"),
        pytest.param([Length(0, 0), b"-"], ["-"], ["a-", ""], id="a hole that is empty"),
    ],
)  # fmt: skip
def test_what_a_segment_allows(parts: list[Term | bytes], inside: list[str], outside: list[str]) -> None:
    """S13-S18."""
    found = language(*parts)
    if not inside:
        assert found is None, "there is nothing to ask for"
        return
    assert found is not None and found.exact
    assert [text for text in inside if not found.language.accepts(text)] == []
    assert [text for text in outside if found.language.accepts(text)] == []


def test_nothing_is_pushed_where_there_is_no_text() -> None:
    assert language(And((Choice((b"a",)), Choice((b"b",))))) is None
    assert language(Length(0, 20), b"\n") is not None, "by its bound"
    assert language(Stop(b"a", inclusive=True), b"-", Choice(())) is None


@pytest.mark.parametrize(
    ("parts", "most"),
    [
        pytest.param([JOKE, b"\nA:", PUNCHLINE], 126, id="the joke"),
        pytest.param(
            [Choice(tuple(b"option number %d" % number for number in range(1000))), b"\n"], 19, id="1000 options"
        ),
        pytest.param([b"- ", Stop(b"\n", AT), b"- ", Stop(b"\n", AT)], 7, id="a list"),
        pytest.param([And((Lacks((b"foo", b"bar")), Stop(b"\n", AT)))], 6, id="banned phrases"),
        pytest.param([And((Stop(b"</s>", BEFORE), Length(0, 20))), b"</s>"], 82, id="a phrase and a length"),
    ],
)
def test_rules_are_few(parts: list[Term | bytes], most: int) -> None:
    assert len(made(*parts, budget=2000).rules) <= most


@pytest.mark.parametrize(
    "stop",
    [
        pytest.param(Stop(rb"\n[A-Z][a-z]{0,6}:", BEFORE, 0), id="a name in a line of its own"),
        pytest.param(Stop(b"(?:a|b){1,8}c", BEFORE, 0), id="two letters"),
        pytest.param(Stop(rb"\d{4}-\d{2}-\d{2}", BEFORE, 0), id="a date in digits of all scripts"),
        pytest.param(Stop(rb"\w{1,5}\.", BEFORE, 0), id="letters of all scripts"),
        pytest.param(Stop(b".{0,6}END", BEFORE, 0), id="anything before a word"),
    ],
)
def test_a_pattern_before_which_a_value_is_cut_took_seconds_in_tens_of_thousands_of_states(stop: Stop) -> None:
    began = time.process_time()
    pushed([Automaton(stop), b"x END"])
    assert time.process_time() - began < 2


# Where there would be too many rules ---------------------------------------------------------------------------------


def test_a_length_that_needs_too_many_rules_is_left_out() -> None:
    found = language(And((Length(0, 5000), Stop(b"?", AT))), b"\nA:")
    assert found is not None and not found.exact and len(found.language.rules) <= 6
    assert found.language.accepts(9000 * "x" + "?\nA:") and not found.language.accepts("x\nA:")


def test_a_lower_bound_stays_where_the_upper_one_is_left_out() -> None:
    found = language(And((Length(5, 5000), Stop(b".", AT))), b"-")
    assert found is not None and not found.exact
    assert found.language.accepts("a.bcd.-") and not found.language.accepts("a.-")


def test_tokens_are_not_counted() -> None:
    """S15: a text does not show its tokens."""
    found = language(And((Length(0, 10, "tokens"), Stop(b".", AT))), b"-")
    assert found is not None and not found.exact
    assert found.language.accepts("a.-") and not found.language.accepts("a.b.-"), "a text of more tokens is lost anyway"
    least = language(And((Length(3, None, "tokens"), Stop(b".", AT))), b"-")
    assert least is not None and least.language.accepts("a.-") and least.language.accepts("a.b.-")


def test_a_pattern_whose_count_is_left_out_may_end_anywhere() -> None:
    found = language(Matches("[0-9]{900}"), b"0")
    assert found is not None and not found.exact and found.language.accepts(900 * "1" + "0")


def test_of_several_stops_that_cut_any_may_fire_where_a_bound_is_left_out() -> None:
    """The longer phrase cuts off more: a text that is too long for the shorter one may fit after its cut."""
    term = And((Length(0, 400), Stop(b"b", BEFORE), Stop(b"aab", BEFORE)))
    found = language(term, b"aab")
    assert found is not None and not found.exact and found.language.accepts(400 * "c" + "aab")


def test_the_widest_count_goes_first() -> None:
    found = language(And((Length(0, 5000), Length(2, 2, "words"), Stop(b"\n", AT))), b"-", budget=400)
    assert found is not None and found.language.accepts("a b\n-") and not found.language.accepts("a b c\n-")


def test_what_needs_too_many_rules_without_counts_is_not_pushed() -> None:
    phrases = tuple(bytes(random.Random(number).choices(b"abcdefgh", k=12)) for number in range(40))
    assert language(Choice(phrases), budget=50) is None


def test_letters_of_every_script_are_pushed_where_few_rules_are_taken() -> None:
    found = language(Matches(r"\w{1,20}"), budget=100)
    assert found is not None and found.exact and len(found.language.rules) == 21


def test_a_condition_with_too_many_states_is_not_pushed() -> None:
    assert language(Matches("(?:a|b)*a(?:a|b){30}"), budget=50) is None


@pytest.mark.parametrize(
    ("options", "undecided", "longest"),
    [
        ([b"Option A with more", b"Option B", b"Another"], 8, 18),
        ([b"yes"], 0, 3),
        ([b"a", b"ab"], 2, 2),
        ([b"ab", b"cd"], 1, 2),
        (["日本".encode(), "日光".encode()], 6, 6),
    ],
)
def test_how_far_a_text_is_open_and_how_long_it_is_at_most(options: list[bytes], undecided: int, longest: int) -> None:
    found = made(Choice(tuple(options)))
    assert (found.undecided(), found.longest()) == (undecided, longest)


def test_a_text_without_a_bound_is_open_without_one() -> None:
    found = made(Matches("a+b"))
    assert (found.undecided(), found.longest()) == (None, None)
