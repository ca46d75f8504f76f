"""Single rules of holes, by example. What holds for all conditions is in test_engine.py."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from lmql_lite.constraints.masks import MASKS_BYTES, Recent
from lmql_lite.constraints.matcher import Engine, HoleMatcher, matcher_after
from lmql_lite.constraints.terms import (
    And,
    Choice,
    Constant,
    Ends,
    Length,
    Matches,
    Not,
    Or,
    Stop,
    Term,
    contains,
)
from lmql_lite.constraints.vocabulary import Vocabulary
from lmql_lite.errors import ConstraintError, Span
from lmql_lite.models.scripted import ScriptedTokenizer

TOKENIZER = ScriptedTokenizer((*ScriptedTokenizer().vocabulary[258:], b"cats", b"cat", b"s\n", b"aa", b"ab", b"\nc"))
VOCABULARY = Vocabulary(TOKENIZER.vocabulary, TOKENIZER.eos)
HOLE = Span("test.lq", "[X]", 0, 3)


def opened(term: Term, following: bytes = b"", max_tokens: int = 1024) -> HoleMatcher:
    return Engine(VOCABULARY).matcher(term, following, max_tokens, "X", HOLE)


def allowed(matcher: HoleMatcher, held: bytes = b"", tokens_left: int = 1024) -> set[bytes | None]:
    """Bytes of the allowed tokens; None stands for end-of-text."""
    return {VOCABULARY.tokens[token] for token in np.flatnonzero(matcher.allowed(held, tokens_left)).tolist()}


def test_a_hole_without_conditions_takes_any_text_and_may_end_between_characters() -> None:
    matcher = opened(And(()))
    assert None in allowed(matcher) and b"\xff" not in allowed(matcher) and b"\x80" not in allowed(matcher)
    half = matcher.advance("é".encode()[:1])
    assert allowed(half) == {bytes([byte]) for byte in range(0x80, 0xC0)}
    assert half.ending is None and half.advance("é".encode()[1:]).value == "é".encode()


def test_a_token_may_run_past_a_stop() -> None:
    """S14."""
    matcher = opened(Stop(b"\n", inclusive=True))
    ended = matcher.advance(b"ok").advance(b".\n\n")
    assert (ended.ending, ended.value, ended.text) == ("stop", b"ok.\n", b"ok.\n\n")


def test_a_stop_waits_for_its_guard_and_the_first_that_may_ends_the_hole() -> None:
    """S13."""
    matcher = opened(And((Stop(b".", inclusive=True), Length(8, None))))
    ended = matcher.advance(b"Short. Longer. More.")
    assert (ended.ending, ended.value) == ("stop", b"Short. Longer.")


def test_stops_in_a_disjunction_guard_their_own_conjuncts() -> None:
    """S13."""
    either = Or((And((Stop(b".", inclusive=True), Length(0, 3))), And((Stop(b"!", inclusive=True), Length(4, None)))))
    assert opened(either).advance(b"ab. and on!").value == b"ab."
    assert opened(either).advance(b"abc. and on!").value == b"abc. and on!"
    assert opened(either).advance(b"a!b.").value == b"a!b.", "an end needs a stop whose own conjunct holds"


@pytest.mark.parametrize(
    ("phrase", "said", "value"),
    [(b"aab", b"aaab", b"a"), (b"abab", b"abaabab", b"aba"), (b"aa", b"caa", b"c"), (b"b", b"b", b"")],
)
def test_stops_before_cut_where_the_phrase_began(phrase: bytes, said: bytes, value: bytes) -> None:
    matcher = opened(Stop(phrase, inclusive=False))
    for byte in said:
        assert matcher.ending is None
        assert value.startswith(matcher.text[: matcher.certain])
        matcher = matcher.advance(bytes([byte]))
    assert (matcher.ending, matcher.value) == ("stop", value)


def test_stops_before_judge_the_value_without_the_phrase() -> None:
    """S15: in one token, the phrase may break a bound, lie outside the options or contain a forbidden phrase."""
    full = opened(And((Stop(b"END", inclusive=False), Length(0, 3)))).advance(b"ab")
    assert full.ending is None and full.advance(b"END").value == b"ab" and full.advance(b"cEND").value == b"abc"
    assert full.advance(b"c").ending == "bound", "the phrase is not waited for"
    choice = opened(And((Stop(b"\n", inclusive=False), Choice((b"cat", b"dog"))))).advance(b"cat")
    assert choice.advance(b"\nc").value == b"cat"
    assert opened(And((Stop(b"no", inclusive=False), Not(contains(b"no"))))).advance(b"xno").value == b"x"
    assert opened(And((Stop(b"xy", inclusive=False), Not(contains(b"x"))))).advance(b"axy").value == b"a"


def test_length_counts_code_points() -> None:
    """S15."""
    matcher = opened(Length(2, 2)).advance("é".encode())
    assert b" a" not in allowed(matcher) and "😀".encode() in allowed(matcher)
    assert matcher.advance("😀".encode()).ending == "bound"


def test_a_choice_that_begins_another_is_decided_by_the_model() -> None:
    """S18: the following text is not known, so any token that continues no option ends the hole. No byte is kept."""
    matcher = opened(Choice((b"cat", b"cats")))
    assert matcher.forced() == b"cat" and allowed(matcher) == {b"c", b"ca", b"cat", b"cats"}
    matcher = matcher.advance(b"cat")
    assert matcher.ending is None and matcher.forced() == b""
    assert {b"s", b"\n", b" the", None} <= allowed(matcher) and b"s\n" not in allowed(matcher)
    assert (matcher.advance(b"\n").ending, matcher.advance(b"\n").value) == ("end-of-text", b"cat")
    assert (matcher.advance(b"s").ending, matcher.advance(b"s").value) == ("forced", b"cats")


def test_the_text_that_follows_ends_a_choice() -> None:
    """S18: only tokens that agree with it as far as both go."""
    matcher = opened(Choice((b"cat", b"cats")), following=b"\n- ").advance(b"cat")
    assert allowed(matcher) == {b"s", b"s\n", b"\n", b"\n-", None}
    assert allowed(opened(Choice((b"cat", b"cats")), following=b"\n").advance(b"cat")) >= {b"\n\n", b"\n-", b"\nc"}
    assert allowed(opened(Choice((b"cat", b"cats")), following=b"s").advance(b"cat")) == {b"s", None}


def test_a_pattern_ends_with_what_it_cannot_go_on_with() -> None:
    """S16, S18: also if the following text is not known, because a model seldom generates end-of-text there."""
    matcher = opened(Matches("[0-9]+")).advance(b"12")
    assert matcher.ending is None and matcher.certain == 2
    assert {b"3", b"\n", b"a", b" the", None} <= allowed(matcher) and b"\xff" in allowed(matcher)
    assert (matcher.advance(b"\n").ending, matcher.advance(b"\n").value) == ("end-of-text", b"12")
    followed = opened(Matches("[0-9]+"), following=b"\n- ").advance(b"12")
    assert allowed(followed) == {*(bytes([digit]) for digit in b"0123456789"), b"12", b"\n", b"\n-", None}
    assert b"\n" not in allowed(opened(Matches("[0-9]+"))), "nothing was said yet"
    either = opened(Or((And((Length(5, 5), Length(7, 7))), Matches("[0-9]+"))))
    assert either.advance(b"12\n").value == b"12", "what no length meets is no alternative"


def test_a_pattern_that_only_forbids_does_not_end_a_hole() -> None:
    matcher = opened(Matches("(?a:[\x00-\x7f]*)", delimits=False)).advance(b"Caf")
    assert {b"e", None} <= allowed(matcher) and "é".encode()[:1] not in allowed(matcher)


def test_a_pattern_of_fixed_length_ends_by_itself() -> None:
    matcher = opened(Matches(r"[0-9]{2}/[0-9]{2}"))
    assert matcher.advance(b"12").forced() == b"/" and matcher.advance(b"1").forced() == b""
    assert (matcher.advance(b"12/31").ending, matcher.advance(b"12/31").value) == ("forced", b"12/31")
    assert opened(Matches("yes")).forced() == b"yes"


def test_patterns_take_part_in_the_algebra() -> None:
    """S19."""
    both = opened(And((Matches("[ab]*"), Matches(".*b.{3}"), Length(6, 6))))
    assert both.advance(b"aa").forced() == b"b" and both.advance(b"aabaaa").ending == "forced"
    neither = opened(And((Not(Matches("a+")), Not(Matches("b+")), Length(2, 2)))).advance(b"a")
    assert b"a" not in allowed(neither) and b"b" in allowed(neither)
    choice = opened(And((Choice((b"cat", b"dog", b"x1")), Matches("[a-z]+"), Not(Matches("d.*")))))
    assert choice.forced() == b"cat"
    stop = opened(And((Matches("[0-9]+"), Stop(b".", inclusive=False)))).advance(b"12.")
    assert (stop.ending, stop.value) == ("stop", b"12")


@pytest.mark.parametrize("terms", [(Matches("a+"), Matches("b+")), (Matches("(?s:.*)"), Not(Matches("(?s:.*)")))])
def test_patterns_that_contradict_each_other_are_found(terms: tuple[Term, ...]) -> None:
    with pytest.raises(ConstraintError, match=r"contradicts|no text"):
        opened(And(terms))


def test_an_empty_option_is_an_option() -> None:
    matcher = opened(Choice((b"", b"yes")))
    assert matcher.ending is None and {b"y", b"\n", None} <= allowed(matcher) and b"yo" not in allowed(matcher)
    assert matcher.advance(b"\n").value == b"" and matcher.advance(b"yes").ending == "forced"
    assert opened(Choice((b"",))).ending == "forced" and opened(Choice((b"",))).value == b""
    assert opened(Length(0, 0)).ending == "forced"


def test_options_may_be_repeated_and_many() -> None:
    dice = random.Random(1)
    options = [bytes(dice.choices(b"abcdefgh", k=20)) for _ in range(1000)]
    matcher = opened(Choice((*options, *options)))
    assert allowed(matcher) == {
        token for token in TOKENIZER.vocabulary if token and any(o.startswith(token) for o in options)
    }
    for token in TOKENIZER.encode(options[7]):
        assert token in np.flatnonzero(matcher.allowed(b"", 1024))
        matcher = matcher.advance(VOCABULARY.tokens[token] or b"")
    assert (matcher.ending, matcher.value) == ("forced", options[7])


def test_a_choice_and_a_length_leave_what_meets_both() -> None:
    """S19: no dead end after the first letter."""
    matcher = opened(And((Choice((b"cat", b"horse", b"sheep", b"cow")), Length(4, None))))
    assert b"c" not in allowed(matcher) and {b"h", b"s"} <= allowed(matcher)


def test_not_of_a_choice_and_double_not() -> None:
    other = opened(Not(Choice((b"cat",))))
    assert None in allowed(other) and other.advance(b"ca").ending is None
    cat = other.advance(b"cat")
    assert None not in allowed(cat) and cat.advance(b"s").ending is None and None in allowed(cat.advance(b"s"))
    assert allowed(opened(Not(Not(Choice((b"cat",)))))) == allowed(opened(Choice((b"cat",))))
    assert opened(Not(Not(Choice((b"cat",))))).advance(b"cat").ending == "forced"


def test_the_limit_of_tokens_keeps_the_way_to_an_end_open() -> None:
    """S19."""
    matcher = opened(contains(b"cat"), max_tokens=3)
    assert allowed(matcher, tokens_left=3) == {b"c", b"ca", b"cat", b"cats", b"\nc"}
    assert allowed(opened(contains(b"cat"), max_tokens=1), tokens_left=1) == {b"cat", b"cats"}
    with pytest.raises(ConstraintError, match="within max_tokens=2"):
        opened(Matches("cat"), max_tokens=2)
    with pytest.raises(ConstraintError, match="within max_tokens"):
        opened(Length(10**9, None))


@pytest.mark.parametrize(
    ("text", "terms", "blamed", "reason"),
    [
        ("X in []", (Choice(()),), 0, "no text satisfies"),
        ("False", (Constant(False),), 0, "is false"),
        ("len(X) < 3 and len(X) > 5", (Length(0, 2), Length(6, None)), 1, "and .* cannot hold together"),
        (
            "X in ['a'] and 'b' in X and len(X) < 9",
            (Choice((b"a",)), contains(b"b"), Length(0, 8)),
            1,
            "and .* cannot hold together",
        ),
        ("'no' in X and not 'n' in X", (contains(b"no"), Not(contains(b"n"))), 1, "and .* cannot hold together"),
    ],
)
def test_what_contradicts_itself_is_refused_and_the_clause_named(
    text: str, terms: tuple[Term, ...], blamed: int, reason: str
) -> None:
    """Law 3, S22."""
    parts = text.split(" and ")
    spans = [Span("test.lq", text, text.index(part), text.index(part) + len(part)) for part in parts]
    placed = tuple(type(term)(**_fields(term), span=span) for term, span in zip(terms, spans, strict=True))
    with pytest.raises(ConstraintError, match=reason) as caught:
        opened(And(placed))
    assert caught.value.span == spans[blamed] and f"`{parts[blamed]}`" in str(caught.value)


def _fields(term: Term) -> dict[str, object]:
    return {name: getattr(term, name) for name in type(term).__slots__ if name != "span"}


def test_tokens_without_bytes_are_never_allowed_and_end_of_text_only_by_its_ids() -> None:
    """Law 3: also if a tokenizer has bytes for its end-of-text."""
    vocabulary = Vocabulary((None, b"<eos>", b"", b"a", b"<", b"<e"), frozenset({1}))
    matcher = Engine(vocabulary).matcher(Length(3, None), b"", 9, "X", HOLE)
    assert np.flatnonzero(matcher.allowed(b"", 9)).tolist() == [3, 4, 5]
    assert np.flatnonzero(matcher.advance(b"aaa").allowed(b"", 9)).tolist() == [1, 3, 4, 5]


def test_looking_up_tokens() -> None:
    vocabulary = Vocabulary((b"b", b"ab", b"a", b"abc", b"ab", b"\xff", b"\xff\xff"), frozenset())
    assert [vocabulary.texts[index] for index in vocabulary.beginning_with(b"ab")] == [b"ab", b"abc"]
    assert [vocabulary.texts[index] for index in vocabulary.beginning_with(b"\xff")] == [b"\xff", b"\xff\xff"]
    assert [vocabulary.texts[index] for index in vocabulary.within(b"abc")] == [b"a", b"ab"]
    assert vocabulary.extends(b"ab") and vocabulary.extends(b"\xff")
    assert not vocabulary.extends(b"abc") and not vocabulary.extends(b"b") and not vocabulary.extends(b"abcd")


def test_equal_conditions_share_their_masks() -> None:
    engine = Engine(VOCABULARY)
    first = engine.matcher(Length(0, 80), b"", 1024, "X", HOLE)
    second = engine.matcher(Length(0, 80, span=HOLE), b"", 1024, "Y", HOLE)
    assert first.allowed(b"", 1024) is second.allowed(b"", 900)
    assert first.advance(b"a").allowed(b"", 1024) is second.allowed(b"", 1024), "far from a bound masks are one array"


def test_what_is_remembered_is_bounded() -> None:
    recent: Recent[int, int] = Recent(max_bytes=30)
    for number in range(5):
        recent.put(number, number, 10)
        recent.get(0)
    assert len(recent) == 3 and recent.get(0) == 0 and recent.get(1) is None and recent.get(4) == 4
    assert recent.put(4, 44, 10) == 4, "the first one put stays"
    assert recent.num_bytes == 30 < MASKS_BYTES


@pytest.mark.parametrize(
    "condition",
    [
        And((Stop(b"\n\n", inclusive=False), Length(0, 60), Not(contains(b"ab")), Not(contains(b"ba")))),
        And((Matches(r"(?:\w+\W){2,4}(?i:éß|ab)*"), Length(0, 60), Not(Matches("(?s:.*)[0-9].{3}")))),
    ],
)
def test_threads_share_an_engine(condition: Term) -> None:
    """S28: no error, and the masks of a single thread."""

    def walk(engine: Engine, seed: int) -> list[bytes]:
        dice = random.Random(seed)
        matcher = engine.matcher(condition, b"", 1024, "X", HOLE)
        masks = []
        for left in range(40, 0, -1):
            mask = matcher.allowed(b"", left)
            masks.append(mask.tobytes())
            token = int(dice.choice(np.flatnonzero(mask)))
            if token in TOKENIZER.eos:
                break
            matcher = matcher.advance(VOCABULARY.tokens[token] or b"")
            if matcher.ending is not None:
                break
        return masks

    shared = Engine(VOCABULARY)
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda seed: walk(shared, seed), range(16)))
    assert together == [walk(Engine(VOCABULARY), seed) for seed in range(16)]


def test_words_sentences_and_tokens_are_counted() -> None:
    """S15, S19: also if the last one is not complete, and if a stop cuts."""
    words = opened(Length(2, 3, "words"))
    assert None not in allowed(words) and None in allowed(words.advance(b" the ").advance(b"cat"))
    assert opened(And((Length(3, None, "words"), Stop(b".", True)))).advance(b"the").advance(b".").ending is None
    sentences = opened(And((Length(2, 2, "sentences"), Stop(b".", True))))
    first = sentences.advance(b"a").advance(b".")
    assert first.ending is None
    assert first.advance(b" the").advance(b".").value == b"a. the."
    tokens = opened(Length(2, 2, "tokens"))
    assert None not in allowed(tokens.advance(b"the")) and tokens.advance(b"the").advance(b"cat").ending == "bound"
    assert opened(And((Choice((b"cat",)), Length(3, 3, "tokens")))).forced() == b"", "each token is asked for"
    assert allowed(opened(And((Length(0, 1, "tokens"), contains(b"cats"))))) == {b"cats"}
    with pytest.raises(ConstraintError, match="nothing can fill"):
        opened(And((Length(0, 2, "tokens"), Length(99, None))))


def test_a_character_that_may_be_white_space_leads_into_no_dead_end() -> None:
    """After `Say?` and a line feed, an em space leaves no room for two sentences. Any other character of three bytes
    begins a sentence that still lacks its mark."""
    hole = opened(And((Length(8, 8), Length(3, None, "sentences")))).advance(b"Say?\n")
    assert hole.allowed(b"", 99)[VOCABULARY.tokens.index(b".")]
    assert not any(hole.allowed(b"", 99)[VOCABULARY.tokens.index(byte)] for byte in (b"\xe2", b"\xe3", b"\xef"))


def test_several_lines_may_be_one_token() -> None:
    """The limit on tokens counted words instead of lines: a token of line feeds has no words."""
    vocabulary = Vocabulary((None, b"a", b"\n\n\n"), frozenset({0}))
    matcher = Engine(vocabulary).matcher(And((Length(4, None, "lines"), Length(0, 2, "tokens"))), b"", 9, "X", HOLE)
    assert np.flatnonzero(matcher.allowed(b"", 9)).tolist() == [2]


def test_a_hole_that_nothing_fills_is_refused_at_once_the_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same error: a data set may open the hole for each of its rows."""
    engine = Engine(VOCABULARY)
    term = And((contains(b"a"), Matches("[^a]+b"), Length(2, None)))
    with pytest.raises(ConstraintError) as first:
        engine.matcher(term, b"", 9, "X", HOLE)
    monkeypatch.setattr("lmql_lite.constraints.matcher.conflict", None)
    with pytest.raises(ConstraintError) as second:
        engine.matcher(term, b"", 9, "X", HOLE)
    assert str(second.value) == str(first.value) and second.value is not first.value


def test_a_sentence_is_a_word_as_well_so_that_three_sentences_of_two_words_are_refused() -> None:
    with pytest.raises(ConstraintError, match="nothing can fill"):
        opened(And((Length(3, 3, "sentences"), Length(2, 2, "words"))))


def test_lines_are_counted_and_the_last_one_may_lack_its_end() -> None:
    lines = opened(And((Length(2, 3, "lines"), Length(0, 9))))
    assert None not in allowed(lines.advance(b"a\n")) and None in allowed(lines.advance(b"a\nb"))
    full = lines.advance(b"a\n\nc")
    assert full.advance(b"\n").may_end and allowed(full.advance(b"\n")) == {None}
    assert opened(Length(0, 1, "lines")).advance(b"a\n").ending == "bound"
    with pytest.raises(ConstraintError, match="nothing can fill"):
        opened(And((Length(3, None, "lines"), Length(0, 2))))


def test_text_that_no_mask_has_judged_fits_as_a_number_of_tokens() -> None:
    """A draft's fourth token fitted by its bytes, and was refused: no other token could bring the last letter."""
    four = opened(And((Ends((b"a", b"b")), Length(4, 4, "tokens")))).advance(b"say", tokens=3)
    assert matcher_after(four, b":", 1) is None and b":" not in allowed(four) and four.forced() == b""
    assert matcher_after(four, b"a", 1) is not None and b"a" in allowed(four)
    two = opened(And((Length(3, 3), Length(2, 2, "tokens"))))
    assert [matcher_after(two, b"cat", tokens) is not None for tokens in (1, 2, 3)] == [False, True, False]


def test_a_stop_may_be_a_pattern() -> None:
    """S13, S14: the first place where a match ends; the longest match that ends there is cut off."""
    stop = opened(Stop(b"[0-9]+\n", True, 0))
    assert stop.advance(b"a12").advance(b"\n-").value == b"a12\n"
    before = opened(Stop(b"[0-9]{1,3}\n", False, 0)).advance(b"a12")
    assert (before.advance(b"\n-").value, before.certain) == (b"a", 1)
    with pytest.raises(ConstraintError, match=r"more than .* states"):
        opened(Stop(b"[0-9]+\n", False, 0))


def test_a_token_may_reach_from_a_pattern_into_the_text_behind_it() -> None:
    """S16: the value and the text after it are one segment."""
    matcher = opened(Matches("[0-9]+"), following=b"\n- ").advance(b"1")
    assert b"12" in allowed(matcher)
    reached = opened(Matches("[a-z]+"), following=b" the cat")
    assert b"cat" in allowed(reached)
    passed = opened(Choice((b"cats", b"dog")), following=b"\n-").advance(b"cat").advance(b"s\n")
    assert (passed.value, passed.text, passed.ending) == (b"cats", b"cats\n", "end-of-text")
