"""The beam family: hypotheses are whole states of the program, the best of them are the results (S23, S24).

What a program does under beams stands in `tests/engine/programs/forks.txt`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import lmql_lite as lq
from lmql_lite.engine.decode.beam_var import BeamOfVariables
from tests.servers.scored import ScriptedCompleter

TWO = '"Say:[A]-[B]" where REGEX(A, r"[abc]{2}") and REGEX(B, r"[ab]{2}")'


def noisy(words: tuple[bytes, ...] = (), seed: int = 1) -> lq.ScriptedModel:
    return lq.ScriptedModel("", certainty=0, seed=seed, words=words)


def run(
    source: str, model: lq.ScriptedModel | None = None, inputs: dict[str, Any] | None = None, **options: Any
) -> list[lq.Result]:
    options = {"decoder": "beam", "n": 4, "session": lq.Session(), **options}
    found = lq.run_sync(source, inputs, model=model or noisy(), **options)
    return found if isinstance(found, list) else [found]


def logprob(model: lq.ScriptedModel, before: str, *said: bytes) -> float:
    """Of tokens after a text of single bytes."""
    ids = (*model.tokenizer.bos, *model.tokenizer.encode(before.encode()))
    total = 0.0
    for token in said:
        number = model.tokenizer.vocabulary.index(token)
        total += float(model._scores(ids)[number])
        ids = (*ids, number)
    return total


def bytes_of(text: str) -> list[bytes]:
    return [bytes([byte]) for byte in text.encode()]


def seen(results: list[lq.Result]) -> list[tuple[str, float]]:
    return [(result.prompt, result.score) for result in results]


# What is found ---------------------------------------------------------------------------------------------------

BRANCHES = """
"Say:[A]" where REGEX(A, r"[abc]")
if A == "a":
    "x[B]" where REGEX(B, r"[ab]{2}")
else:
    "yy[B]!" where B in ["cba", "cbd", "d"]
"""


def continuations(model: lq.ScriptedModel) -> Iterator[tuple[str, float]]:
    for first in "abc":
        score = logprob(model, "Say:", *bytes_of(first))
        template = "x" if first == "a" else "yy"
        values = ["".join(pair) for pair in product("ab", repeat=2)] if first == "a" else ["cba", "cbd", "d"]
        for value in values:
            before = f"Say:{first}{template}"
            end = "!" if first != "a" else ""
            yield before + value + end, score + logprob(model, before, *bytes_of(value))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "options",
    [{"n": 12}, {"decoder": "beam_var", "n": 12}, {"decoder": "best_k", "n": 3, "k": 3, "budget": 1000}],
    ids=["beam", "beam_var", "best_k"],
)
def test_with_room_for_everything_the_results_are_those_of_exhaustive_search(
    options: dict[str, Any], seed: int
) -> None:
    model = noisy(seed=seed)
    wanted = sorted(continuations(model), key=lambda pair: -pair[1])[: options["n"]]
    found = run(BRANCHES, model, **options)
    assert [result.prompt for result in found] == [prompt for prompt, _ in wanted]
    if options.get("decoder") != "beam_var":
        assert [result.score for result in found] == pytest.approx([score for _, score in wanted])


@pytest.mark.parametrize("seed", range(2))
def test_texts_that_are_spelled_in_several_ways_are_one_result_with_the_best_score(seed: int) -> None:
    model = noisy((b"ab", b"ba", b"aab"), seed=seed)
    wanted: dict[str, float] = {}
    for count in range(1, 4):
        for tokens in product([b"a", b"b", b"ab", b"ba", b"aab"], repeat=count):
            text = b"".join(tokens).decode()
            if len(text) == 3:
                wanted[text] = max(wanted.get(text, -1e9), logprob(model, "Say:", *tokens))
    found = run('"Say:[A]" where REGEX(A, r"[ab]{3}")', model, n=40)
    assert {result["A"]: result.score for result in found} == pytest.approx(wanted)
    assert len(found) == 8


class Brief(lq.ScriptedModel):
    """Says `a`, `b` or the end of the text, and next to never anything else."""

    def _scores(self, ids: tuple[int, ...]) -> Any:
        row = super()._scores(ids).astype(np.float64)
        likely = [*self.tokenizer.eos, *(self.tokenizer.vocabulary.index(letter) for letter in (b"a", b"b"))]
        row[likely] += 40
        row -= row.max()
        return (row - np.log(np.exp(row).sum())).astype(np.float32)


@pytest.mark.parametrize("seed", range(2))
def test_the_end_of_a_text_costs_what_the_model_gives_it(seed: int) -> None:
    model = Brief("", certainty=0, seed=seed, words=())
    (end,) = model.tokenizer.eos
    wanted: dict[str, float] = {}
    for count in range(3):
        for letters in product("ab", repeat=count):
            value = "".join(letters)
            ids = (*model.tokenizer.bos, *model.tokenizer.encode(f"Say:{value}".encode()))
            ends = float(model._scores(ids)[end]) if count < 2 else 0.0
            wanted[value] = logprob(model, "Say:", *bytes_of(value)) + ends
    found = run('"Say:[A]" where len(A) < 3', model, n=7)
    assert {result["A"]: result.score for result in found} == pytest.approx(wanted)


def test_a_token_that_is_cut_at_the_end_of_a_hole_is_paid_for() -> None:
    model = noisy()
    found = run('"Say:[A]" where REGEX(A, r"[ab]{0,2}")', model, n=9)
    ends = {result["A"]: result.score for result in found}
    ids = (*model.tokenizer.bos, *model.tokenizer.encode(b"Say:"))
    row = model._scores(ids)
    goes_on = [model.tokenizer.vocabulary.index(letter) for letter in (b"a", b"b")]
    row[[*goes_on, *model.tokenizer.bos]] = -np.inf
    assert ends[""] == pytest.approx(row.max())


def test_results_are_different_and_in_order_and_one_beam_is_one_result() -> None:
    found = run(TWO)
    assert len({result.prompt for result in found}) == len(found) == 4
    assert [result.score for result in found] == sorted((result.score for result in found), reverse=True)
    assert {result.seed for result in found} == {found[0].seed}
    options: dict[str, Any] = {"model": noisy(), "session": lq.Session(), "decoder": "beam"}
    assert isinstance(lq.run_sync('"[A]" where A in ["a"]', n=4, **options), list)
    assert isinstance(lq.run_sync('"[A]" where A in ["a"]', n=1, **options), lq.Result)


def test_drawn_beams_repeat_under_their_seed_and_differ_under_another() -> None:
    def texts(seed: int) -> list[str]:
        return [result.prompt for result in run(TWO, decoder="beam_sample", n=3, seed=seed)]

    assert texts(5) == texts(5)
    assert len({tuple(texts(seed)) for seed in range(6)}) > 3


@pytest.mark.parametrize(("decoder", "options"), [("beam_var", {"alpha": 1}), ("var", {"b": 3}), ("best_k", {"k": 2})])
def test_a_search_is_never_worse_than_argmax_and_the_same_cold_and_warm(decoder: str, options: dict[str, int]) -> None:
    for seed in range(4):
        model, session = noisy(seed=seed), lq.Session()
        cold, warm = (run(TWO, model, session=session, decoder=decoder, n=2, **options) for _ in range(2))
        (greedy,) = run(TWO, model, decoder="argmax", n=1)
        assert seen(cold) == seen(warm) and warm[0].usage.forward_passes == 0
        assert cold[0].score >= greedy.score - 1e-4


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"decoder": "beam_var", "alpha": 2}, "alpha is a number from 0 to 1"),
        ({"decoder": "beam", "k": 2}, "beam has no option called 'k'"),
        ({"decoder": "best_k", "k": 0}, "k is a whole number, at least 1"),
    ],
)
def test_options_of_a_decoder_belong_to_it_alone(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(lq.InputError, match=sentence):
        run(BRANCHES, **options)


# Programs --------------------------------------------------------------------------------------------------------


def test_what_python_rejects_is_given_up_and_the_one_that_leads_goes_back_S21() -> None:
    source = 'odd = lambda text: sum(text.encode()) % 2\n"Say:[A]" where REGEX(A, r"[a-d]{2}") and odd(A)'
    alone = lq.run_sync(source, model=noisy(), session=lq.Session())
    assert isinstance(alone, lq.Result)
    found = run(source, n=5)
    assert all(sum(result["A"].encode()) % 2 for result in found)
    assert [alone["A"]] == [result["A"] for result in run(source, n=1)]
    assert found[0].score >= run(source, n=1)[0].score


def test_a_condition_that_one_hypothesis_cannot_meet_ends_that_one_alone() -> None:
    source = '"[A]" where REGEX(A, r"[abc]")\n"-[B]" where B in {"a": ["x"], "b": ["y"], "c": []}[A]'
    model = next(model for model in (noisy(seed=seed) for seed in range(50)) if _first(model) == "c")
    assert {result["A"] for result in run(source, model, n=3)} == {"a", "b"}
    with pytest.raises(lq.ConstraintError):
        run(source, model, n=1)


def _first(model: lq.ScriptedModel) -> str:
    return str(run('"[A]" where REGEX(A, r"[abc]")', model, n=1)[0]["A"])


def test_an_exception_of_the_query_is_the_users_whatever_hypothesis_raised_it() -> None:
    with pytest.raises(ZeroDivisionError):
        run('"[A]" where REGEX(A, r"[abc]")\nx = 1 / ("ab".find(A) + 1)', n=3)


def test_options_of_a_distribution_are_weighed_for_all_hypotheses_at_once_S25() -> None:
    model = noisy()
    found = run('"[A]:[B]" where REGEX(A, r"[abc]") distribution B in ["yes", "no", "maybe"]', model, n=3)
    assert model.calls == 2
    for result in found:
        options = dict(result.variables["P(B)"])
        assert result["B"] == max(options, key=options.__getitem__)
        parts = logprob(model, "", *bytes_of(result["A"])), logprob(model, result["A"] + ":", *bytes_of(result["B"]))
        assert result.score == pytest.approx(sum(parts))


def test_a_hole_with_a_decoder_of_its_own_goes_one_way() -> None:
    source = '"Say:[A]-[sample(temperature=2) B]" where REGEX(A, r"[abc]") and REGEX(B, r"[a-z]{3}")'
    found = run(source, n=3, seed=4)
    assert sorted(result["A"] for result in found) == ["a", "b", "c"]
    assert [result.prompt for result in run(source, n=3, seed=4)] == [result.prompt for result in found]
    others = run(source, n=3, seed=5)
    assert {result["B"] for result in others}.isdisjoint({result["B"] for result in found})


UNEVEN = """
said = []
def note(value):
    said.append(value)
    return value
for item in ["a", "b"]:
    "[@note H0]" where len(H0) == 2 and H0.upper() != "AA" and sum(H0.encode()) % 3 != 0
    match len(said) % 3:
        case 0:
            " the[argmax H1] the" where len(H1) == 2 and H1.upper() != "AA" and sum(H1.encode()) % 3 != 0
            "c12[@note H2]c12" where STOPS_BEFORE(H2, "\\n")
        case other:
            "\\n[argmax H3]\\n" where REGEX(H3, r"[a-c]+|é?[0-9][0-9]")
            "c12[H4: int]" where len(H4) < 4
"b[H5]" distribution H5 in ["a", "ab"]
"""


@pytest.mark.parametrize("seed", range(3))
def test_who_has_to_wait_for_the_model_is_not_judged_otherwise_than_who_has_not(seed: int) -> None:
    """Some hypotheses ask in a step, others do not: what was forced has to count from the same round on (law 1)."""
    model, session = lq.ScriptedModel("a\n- Option A.\nthe end?", seed=seed, certainty=3.0), lq.Session()
    options: dict[str, Any] = {"model": model, "session": session, "n": 3, "max_tokens": 8, "max_backtracks": 6}
    cold = seen(run(UNEVEN, **options))
    calls = model.calls
    assert seen(run(UNEVEN, **options)) == cold
    assert model.calls == calls


class Door:
    def __init__(self, log: list[tuple[str, str]], name: str) -> None:
        self.log, self.name = log, name

    def __enter__(self) -> None:
        self.log.append(("in", self.name))

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.log.append(("out", self.name))


def test_what_one_hypothesis_raises_closes_the_others() -> None:
    log: list[tuple[str, str]] = []

    def check(name: str) -> None:
        if len(log) == 3:
            raise KeyError(name)

    source = """
"Say:[A]" where len(A) == 1
with Door(log, A):
    "x"
    check(A)
    "y[B]" where B in ["b"]
"""
    with pytest.raises(KeyError):
        run(source, inputs={"Door": Door, "log": log, "check": check}, n=3)
    opened, closed = ([name for what, name in log if what == way] for way in ("in", "out"))
    assert len(opened) == 3 and sorted(opened) == sorted(closed)


def test_a_cancelled_run_closes_every_hypothesis() -> None:
    log: list[tuple[str, str]] = []
    source = """
"Say:[A]" where len(A) == 1
with Door(log, A):
    await wait()
"""

    async def cancelled() -> None:
        waits = asyncio.Event()

        async def wait() -> None:
            if len(log) == 3:
                waits.set()
            await asyncio.Event().wait()

        given = {"Door": Door, "log": log, "wait": wait}
        task = asyncio.create_task(
            lq.run(source, given, model=noisy(), session=lq.Session(), decoder="beam", n=3)  # type: ignore[call-overload]
        )
        await waits.wait()
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    opened, closed = ([name for what, name in log if what == way] for way in ("in", "out"))
    assert len(opened) == 3 and sorted(opened) == sorted(closed)


def test_a_server_is_refused_by_name_before_anything_is_asked() -> None:
    server = ScriptedCompleter("abc")
    with pytest.raises(lq.InputError, match="scripted-server is on a server"):
        lq.run_sync('"[A]"', model=server, session=lq.Session(), decoder="beam", n=2)
    assert server.requests == 0


# What it costs, and what is told ---------------------------------------------------------------------------------


def test_all_hypotheses_of_a_step_are_one_call_of_the_model() -> None:
    model = noisy()
    found = run('"Say:[A]" where REGEX(A, r"[a-z]{6}")', model, n=8)
    assert model.calls == 6
    assert {result.usage.forward_passes for result in found} == {6}
    model = noisy()
    run('"Say:[A]" where A in ["one thing", "another", "something else"]', model, n=3)
    assert model.calls <= 4, "forced text is weighed with what is asked for next"


def test_given_up_tokens_are_on_the_books_of_every_result() -> None:
    found = run('"Say:[A]" where REGEX(A, r"[a-z]{4}")', n=3)
    for result in found:
        result.check_ledger()
        lost = [token for token in result.tokens if token.fate == "pruned"]
        assert lost and all(token.hole == "A" for token in lost)
        assert result.usage.wasted_tokens == len(lost)
        assert result.usage.completion_tokens == 4 + len(lost)
        assert "".join(token.text for token in result.tokens if token.fate == "kept") == result.prompt


# Within a hole, within variables, wherever ------------------------------------------------------------------------


def values(model: lq.ScriptedModel, before: str, letters: str, length: int) -> dict[str, float]:
    """Every value of a hole with its score."""
    texts = ["".join(letter) for letter in product(letters, repeat=length)]
    return {text: logprob(model, before, *bytes_of(text)) for text in texts}


@pytest.mark.parametrize("seed", range(2))
def test_var_goes_on_with_the_best_values_of_each_hole(seed: int) -> None:
    """With room for every value within a hole the search is exact: the n best of A, then the n best of A with B."""
    model = noisy(seed=seed)
    first = sorted(values(model, "Say:", "abc", 2).items(), key=lambda pair: -pair[1])[:2]
    wanted = {
        f"Say:{text}-{more}": score + added
        for text, score in first
        for more, added in values(model, f"Say:{text}-", "ab", 2).items()
    }
    found = run(TWO, model, decoder="var", n=2, b=16)
    best = sorted(wanted, key=lambda text: -wanted[text])[:2]
    greedy = run(TWO, model, decoder="argmax", n=1)[0]
    assert found[0].prompt in (best[0], greedy.prompt)
    assert found[0].score == pytest.approx(max(wanted[best[0]], greedy.score))


def test_var_compares_values_of_different_lengths_when_all_are_complete() -> None:
    model = noisy(seed=4)
    found = run('"Say:[A]!" where A in ["a", "bcbcbc", "cab"]', model, decoder="var", n=3, b=3)
    assert {result["A"] for result in found} == {"a", "bcbcbc", "cab"}


def continuation(number: int, score: float, *, filled: int, depth: int) -> Any:
    branch = SimpleNamespace(filled=filled, state=SimpleNamespace(depth=depth))
    return SimpleNamespace(
        beam=SimpleNamespace(branch=branch, number=number), score=score, way=None, rank=0, leads=False
    )


def kept(width: int, alpha: float, *continuations: Any) -> list[int]:
    decoder = object.__new__(BeamOfVariables)
    decoder.width, decoder.options = width, {"alpha": alpha}
    return [each.beam.number for each in decoder.kept(list(continuations))]


def test_branches_in_different_holes_do_not_compete() -> None:
    ahead, behind = continuation(0, -9.0, filled=1, depth=5), continuation(1, -1.0, filled=0, depth=3)
    assert kept(1, 0, ahead, behind) == [0, 1]


def test_alpha_decides_whether_sums_or_means_are_compared() -> None:
    short, long = continuation(0, -3.0, filled=0, depth=2), continuation(1, -4.0, filled=0, depth=8)
    assert kept(1, 0, short, long) == [0]
    assert kept(1, 1, short, long) == [1]


@pytest.mark.parametrize("seed", range(3))
def test_a_branch_that_fell_behind_comes_back(seed: int) -> None:
    """With one way at a time, argmax never looks back; best_k(k=1) goes on with whatever is likeliest."""
    model = noisy(seed=seed)
    wanted = max(score for _, score in continuations(model))
    (found,) = run(BRANCHES, model, decoder="best_k", n=2, k=1, budget=1000)[:1]
    (greedy,) = run(BRANCHES, model, decoder="argmax", n=1)
    assert wanted + 1e-4 >= found.score >= greedy.score - 1e-4


def test_the_budget_bounds_what_waits_and_the_best_go_on_to_their_ends() -> None:
    model = noisy(seed=2)
    source = '"Say:[A]" where REGEX(A, r"[ab]{12}")'
    wide = run(source, model, decoder="best_k", n=2, k=1, budget=40)
    assert [len(result["A"]) for result in wide] == [12, 12]
    assert wide[0].usage.forward_passes is not None and wide[0].usage.forward_passes < 100
