"""Grammars are read by the parsers that they are written for: llguidance, and xgrammar where it is installed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper, grammar_from

from lmql_lite.constraints.automaton import Automaton
from lmql_lite.constraints.json import Texts
from lmql_lite.constraints.language import LAST, Language, Rule, smallest
from lmql_lite.constraints.server_grammar import pushed
from lmql_lite.constraints.terms import And, Choice, Lacks, Length, Stop, Term
from lmql_lite.constraints.vocabulary import Vocabulary
from lmql_lite.models.grammars import gbnf

Accepts = Callable[[str], bool]
Reader = Callable[[Language], Accepts]
"""A parser that has read the grammar of a language."""

TEXTS = Texts(Vocabulary((None, *(bytes([byte]) for byte in range(256))), frozenset({0})))
TOKENIZER = LLTokenizer(TokenizerWrapper(TEXTS))
SEEDS = 6
LANGUAGES = 20
"""Of one seed."""
ASCII = tuple(code for code in range(0x80) if not chr(code).isalnum() or chr(code) in "09AFZafnxz")
"""Few letters: only digits of numbers, and what a backslash makes something else."""
ODD = (0x80, 0x85, 0xA0, 0xAD, 0xE9, 0x7FF, 0x800, 0x2028, 0xD7FF, 0xE000, 0xFEFF, 0xFFFF, 0x10000, 0x1F600, LAST)
"""Where UTF-8 grows longer, beside surrogates, and what is not seen."""


def llguidance(kind: str, language: Language) -> Accepts:
    parser = LLMatcher(TOKENIZER, grammar_from(kind, gbnf(language)), log_level=0)
    assert not parser.is_error(), parser.get_error()

    def accepts(said: str) -> bool:
        tokens, here = TEXTS(said.encode()), parser.deep_copy()
        fits = here.try_consume_tokens(tokens) == len(tokens) if tokens else True
        assert not here.is_error(), here.get_error()
        return fits and here.is_accepting()

    return accepts


def xgrammar(language: Language) -> Accepts:
    pytest.importorskip("xgrammar", reason="xgrammar comes with the group bench of pyproject.toml")
    from xgrammar import Grammar
    from xgrammar.testing import _is_grammar_accept_string

    grammar: Any = Grammar.from_ebnf(gbnf(language))
    return lambda said: bool(_is_grammar_accept_string(grammar, said))


READERS: dict[str, Reader] = {
    "llguidance, GBNF": lambda language: llguidance("gbnf", language),
    "llguidance, EBNF": lambda language: llguidance("grammar", language),
    "xgrammar, EBNF": xgrammar,
}


@pytest.fixture(params=list(READERS))
def reader(request: pytest.FixtureRequest) -> Reader:
    return READERS[request.param]


def one_of(*ranges: tuple[int, int]) -> Language:
    """One character of some ranges."""
    edges = [
        (low, high) for first, last in ranges for low, high in ((first, min(last, 0xD7FF)), (max(first, 0xE000), last))
    ]
    return smallest([Rule(tuple((low, high, 1) for low, high in sorted(edges) if low <= high), False), Rule((), True)])


def spelled(*texts: str) -> Language:
    """These texts and no others."""
    found = pushed([Automaton(Choice(tuple(text.encode() for text in texts)))])
    assert found is not None
    return found.language


def of(*parts: Term | bytes) -> Language:
    found = pushed([part if isinstance(part, bytes) else Automaton(part) for part in parts])
    assert found is not None
    return found.language


# What is read is what was meant --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_parser_takes_the_texts_of_the_language_and_no_others(reader: Reader, seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(LANGUAGES):
        language = some_language(dice)
        if not language.is_empty:
            accepts = reader(language)
            for text in some_texts(dice, language):
                assert accepts(text) == language.accepts(text), (ascii(text), gbnf(language))


def some_language(dice: random.Random) -> Language:
    """Up to six rules with edges between characters that mean something to somebody."""
    many = dice.randint(1, 6)
    rules = []
    for _ in range(many):
        starts = sorted({dice.choice([*ASCII, *ODD]) for _ in range(dice.randint(1, 6))})
        edges = []
        for low, end in zip(starts, [*starts[1:], LAST + 1], strict=True):
            high = min(low + dice.choice([0, 0, 0, 1, 2, 30, LAST]), end - 1)
            for first, last in ((low, min(high, 0xD7FF)), (max(low, 0xE000), high)):
                edges += [(first, last, dice.randrange(many))] if first <= last else []
        rules.append(Rule(tuple(edges), dice.random() < 0.35))
    return smallest(rules)


def some_texts(dice: random.Random, language: Language) -> set[str]:
    texts = {""}
    for _ in range(8):
        text, rule = "", language.rules[0]
        while rule.edges and len(text) < 12 and not (rule.accepts and dice.random() < 0.3):
            low, high, after = dice.choice(rule.edges)
            text += chr(dice.choice([low, high, dice.randint(low, high)]))
            rule = language.rules[after]
        place, other = dice.randint(0, len(text)), chr(dice.choice([*ASCII, *ODD]))
        texts |= {text, text[:place] + other + text[place + dice.randint(0, 1) :]}
    return texts


def test_every_character_is_itself_in_a_string(reader: Reader) -> None:
    for code in [*ASCII, *ODD]:
        accepts = reader(spelled(f"a{chr(code)}b1", f"\\x41{chr(code)}"))
        assert accepts(f"a{chr(code)}b1") and accepts(f"\\x41{chr(code)}"), hex(code)
        assert not accepts("ab1") and not accepts("A"), hex(code)


def test_every_character_is_itself_in_a_class(reader: Reader) -> None:
    for code in [*ASCII, *ODD]:
        language = one_of((code, code), (0x62, 0x62), (0x39, 0x39))
        accepts = reader(language)
        around = {code - 1, code, code + 1, 0x62, 0x61, 0x39, *map(ord, "-^[]\\")} - {-1, 0xD800, 0xDFFF, LAST + 1}
        wrong = [each for each in around if accepts(chr(each)) != language.accepts(chr(each))]
        assert not wrong, hex(code)


def test_every_character_may_be_the_end_of_a_range(reader: Reader) -> None:
    for code in ASCII:
        around = {max(code - 1, 0), code, code + 1, 0x7F, 0x2028, *map(ord, "-^[]\\")}
        for language in (one_of((code, LAST)), one_of((0, code), (0x2028, LAST)), one_of((code, code + 1))):
            accepts = reader(language)
            wrong = [each for each in around if accepts(chr(each)) != language.accepts(chr(each))]
            assert not wrong, hex(code)


def test_the_empty_text_can_be_asked_for(reader: Reader) -> None:
    accepts = reader(Language((Rule((), True),)))
    assert accepts("") and not accepts("a")


def test_nothing_can_be_asked_for_where_there_is_no_text() -> None:
    with pytest.raises(ValueError, match="no text is in this language"):
        gbnf(Language((Rule((), False),)))


def test_a_long_text_is_read(reader: Reader) -> None:
    text = "".join(random.Random(1).choices('abc "\\\n-]', k=1500))
    accepts = reader(of(text.encode(), Stop(b"\n", inclusive=True)))
    assert accepts(text + "x\n") and not accepts(text[:-1])


def segments() -> Iterator[tuple[str, Language, list[str], list[str]]]:
    joke = And((Length(0, 119), Stop(b"?", inclusive=True)))
    punchline = And((Stop(b"\n", inclusive=True), Length(2, None)))
    yield (
        "joke",
        of(joke, b"\nA:", punchline),
        ["Why?\nA:So", 119 * "x" + "\nA:ok\n"],
        ["Why\nA:So", 120 * "x" + "?\nA:ok"],
    )
    tag = And((Length(0, 30), Stop(b"</s>", inclusive=True)))
    yield "tag", of(tag, b"."), ["</</s>.", 30 * "<" + "."], ["</s>", 31 * "<" + "."]
    banned = And((Lacks((b"foo", b"bar", b"baz")), Stop(b"\n", inclusive=True)))
    yield "banned", of(banned), ["fobafo", "fo\n"], ["xfoo", "ba\nba"]


@pytest.mark.parametrize(
    ("language", "inside", "outside"), [pytest.param(*rest, id=name) for name, *rest in segments()]
)
def test_segments_are_read(reader: Reader, language: Language, inside: list[str], outside: list[str]) -> None:
    accepts = reader(language)
    assert [text for text in inside if not accepts(text)] == [] == [text for text in outside if accepts(text)]


# How it looks --------------------------------------------------------------------------------------------------------


def test_choices_share_what_they_begin_and_end_with() -> None:
    choice = spelled("cat", "car", "card", "dog", "hat")
    assert gbnf(choice) == 'root ::= "ca" ("r" "d"? | "t") | "dog" | "hat"\n'
    many = of(Choice(tuple(b"option number %d" % number for number in range(1000))), b"\n")
    assert len(gbnf(many)) < 200


def test_no_character_is_left_out_by_name() -> None:
    """R21: [^b] let llama.cpp generate bytes that are no character, such as F5 91 8A 91. It also refuses a token that
    ends inside a character if one that begins so is left out."""
    assert gbnf(one_of((0, 0x61), (0x63, LAST))) == "root ::= [c-\U0010ffff\\x00-a]\n"
    assert "^" not in gbnf(one_of((0, 0x40), (0x80, 0x2027), (0x2029, LAST)))
    assert gbnf(one_of((0, LAST))) == "root ::= [\\x00-\U0010ffff]\n"


def test_letters_behind_a_number_are_no_digits_of_it() -> None:
    """xgrammar reads as many hexadecimal digits as it finds."""
    assert gbnf(of(b"\x01ab-")) == 'root ::= "\\x01\\x61\\x62-"\n'
    assert gbnf(one_of((1, 1), (0x61, 0x62))) == "root ::= [a-b\\x01]\n"
