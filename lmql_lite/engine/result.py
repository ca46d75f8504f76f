"""Result of a run: the text, the values, every token with its source, and the usage."""

from __future__ import annotations

import json
import math
import reprlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Generic

from typing_extensions import TypeVar

from lmql_lite.constraints.terms import Ending
from lmql_lite.engine.budget import Cost
from lmql_lite.errors import did_you_mean
from lmql_lite.html import fragment, framed, grid, kept
from lmql_lite.plain import plain
from lmql_lite.tokens import Token

Value = TypeVar("Value", default=Any)
SHOWN = 60
"""Maximum number of characters of the text and of each value in a `repr`."""
BEST = 4
"""Maximum number of texts of a posterior in a `repr`."""
ROWS = 50
"""Maximum number of results that a notebook shows."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Usage of a run: counts, never estimates. A count is None if the server did not report it (law 6).

    `requests` counts calls of a Completer, `forward_passes` the calls of a Scorer that this run took part in.
    `completion_tokens` are all tokens chosen for holes; `wasted_tokens` are those of them that are not in the prompt.
    `tokens_from_*`, `tokens_forced` and `draft_accepted` count the tokens in the prompt:
    `kept output = cache + model + draft accepted + forced`.

    For a server, `prompt_tokens`, `completion_tokens` and `provider_cached_tokens` are its own reports, and None if a
    request was closed before the report (S32). `received_tokens` are the tokens that arrived; `wasted_tokens` are those
    of them that have no part in the prompt. `reasoning_tokens` are the thoughts among the `completion_tokens`. `cost`
    is set if the run has prices.

    A torch model counts `tokens_fed`, the tokens that its network computed for this run, and in `kv_from_*` the tokens
    whose keys and values were known, by their place; None if it was not asked. `close_calls` counts choices that the
    noise of the scores might have changed (S5): with 0 of them, another run gives the same tokens. It is 0 for a model
    without noise, and None for a model that does not state its noise.

    >>> result = lq.run_sync('"Say:[X]"', model=lq.ScriptedModel("Say: hi"), cache=False)
    >>> result.usage.requests, result.usage.tokens_from_cache
    (0, 0)
    """

    requests: int | None = 0
    forward_passes: int | None = 0
    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    tokens_from_cache: int | None = 0
    tokens_from_model: int | None = 0
    tokens_forced: int | None = 0
    draft_accepted: int | None = 0
    draft_rejected: int | None = 0
    wasted_tokens: int | None = 0
    received_tokens: int | None = None
    provider_cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    tokens_fed: int | None = None
    kv_from_memory: int | None = None
    kv_from_disk: int | None = None
    kv_from_redis: int | None = None
    close_calls: int | None = None
    cost: Cost | None = None

    def as_dict(self) -> dict[str, int | None]:
        """Counts by name, without the cost."""
        return {name: getattr(self, name) for name in COUNTS}

    def __repr__(self) -> str:
        """The counts that are not 0, and the cost."""
        counts = [f"{name}={count}" for name, count in self.as_dict().items() if count]
        if self.cost is not None:
            counts.append(f"cost={self.cost.amount:g}")
        return f"Usage({', '.join(counts)})"


def probabilities(logprobs: Sequence[float]) -> tuple[float, ...]:
    """Softmax of log-probabilities; equal shares if all of them are -inf."""
    best = max(logprobs)
    if best == -math.inf:
        return (1 / len(logprobs),) * len(logprobs)
    shares = [math.exp(logprob - best) for logprob in logprobs]
    total = math.fsum(shares)
    return tuple(share / total for share in shares)


COUNTS = tuple(each.name for each in fields(Usage) if each.name != "cost")
"""Names of the counts of a Usage."""


@dataclass(frozen=True, slots=True)
class OptionScores:
    """Scores of options as the next text (S25).

    `logprobs` are natural logarithms, summed over the option's `tokens`; `probabilities` are their softmax. The first
    tokens of an option may include the end of the prompt. `usage` is the cost of the answer.

    >>> scores = lq.score_sync("A list:\\n-", [" Sun", " Hat"], model=lq.ScriptedModel("A list:\\n- Sun"))
    >>> scores.best
    ' Sun'
    """

    options: tuple[str, ...]
    logprobs: tuple[float, ...]
    probabilities: tuple[float, ...]
    tokens: tuple[tuple[Token, ...], ...] = field(repr=False)
    usage: Usage = field(repr=False)

    @property
    def best(self) -> str:
        """The most likely option, ties to the first."""
        return self.options[self.logprobs.index(max(self.logprobs))]

    def __repr__(self) -> str:
        shares = [
            f"{_cut(option)}: {share:.3g}" for option, share in zip(self.options, self.probabilities, strict=True)
        ]
        return f"OptionScores({', '.join(shares)})"


@dataclass(frozen=True, slots=True)
class WeightedText:
    """A text of a posterior, with the values and the endings of its holes. The weights of a posterior sum to 1."""

    text: str
    variables: Mapping[str, Any]
    endings: Mapping[str, Ending]
    weight: float


@dataclass(frozen=True, slots=True, repr=False)
class Posterior:
    """Texts with weights, as `smc` finds them: an estimate of the model's own distribution given the conditions (S36).

    `texts` are different texts, best first. `evidence` is the natural logarithm of the estimated probability of the
    conditions and of the query's text after its first hole. `is_exact` is True if no possible text was left out.
    `particles` bounds the number of texts.

    >>> result = lq.run_sync('smc(seed=1) "Say:[X]" where X in [" hi", " ho"]', model=lq.ScriptedModel("Say: hi"))
    >>> result.posterior.p("X")[0]
    (' hi', 1.0)
    """

    texts: tuple[WeightedText, ...]
    evidence: float
    particles: int
    is_exact: bool

    @property
    def effective(self) -> float:
        """Effective sample size: the number of texts with equal weights that would be as good."""
        return 1 / math.fsum(text.weight**2 for text in self.texts)

    def p(self, name: str) -> list[tuple[Any, float]]:
        """(value, probability) of every value of a hole, most likely first, as `P(NAME)` of a `distribution`. Texts in
        which the hole has no value are left out. Raises KeyError for an unknown name."""
        found: list[tuple[Any, float]] = []
        for text in self.texts:
            if name not in text.variables:
                continue
            value = text.variables[name]
            at = next((at for at, (known, _) in enumerate(found) if known == value), len(found))
            found[at:] = [(value, text.weight + (found[at][1] if at < len(found) else 0.0)), *found[at + 1 :]]
        if not found:
            raise KeyError(f"no hole {name!r} was filled")
        return sorted(found, key=lambda pair: -pair[1])

    def __repr__(self) -> str:
        best = ", ".join(f"{_cut(text.text)}: {text.weight:.4f}" for text in self.texts[:BEST])
        more = ", ..." if len(self.texts) > BEST else ""
        return f"Posterior({best}{more}; effective={self.effective:.1f} of {self.particles})"


@dataclass(frozen=True, slots=True, repr=False)
class Result(Mapping[str, Any], Generic[Value]):
    """A finished run: a mapping of holes to their values, with the rest as attributes.

    `prompt` is the whole text of program and model. `variables` are the last values of the holes, in their types, and
    under `P(X)` the (value, probability) pairs of a hole X with a `distribution`. `value` is the query's return value
    (None without `return`). `endings` are the reasons why the holes ended. `seed` repeats the run exactly. `notices`
    are sentences that a user should read. `score` is the sum of the raw log-probabilities of the chosen tokens; the
    best of several results has the highest. `posterior` has the other texts that `smc` weighed; for them `P(X)` are the
    pairs of every hole X.

    >>> result = lq.run_sync('"Say:[X]!" where X in [" hi", " ho"]', model=lq.ScriptedModel("Say: hi"))
    >>> result["X"], result.prompt
    (' hi', 'Say: hi!')
    >>> dict(result)
    {'X': ' hi'}
    """

    prompt: str
    variables: Mapping[str, Any]
    value: Value
    tokens: tuple[Token, ...] = field(repr=False)
    usage: Usage = field(repr=False)
    endings: Mapping[str, Ending] = field(repr=False)
    seed: int
    model: str
    notices: tuple[str, ...] = ()
    score: float = 0.0
    posterior: Posterior | None = field(default=None, repr=False)

    def __getitem__(self, name: str) -> Any:
        """The value of a hole. Raises KeyError for an unknown name."""
        if isinstance(name, int):
            raise KeyError("a run without n > 1 returns one Result, not a list: leave out the number in brackets")
        if name not in self.variables:
            known = f"there are {', '.join(self.variables)}" if self.variables else "the query has filled none"
            raise KeyError(f"no hole {name!r} was filled; {did_you_mean(str(name), self.variables) or known}")
        return self.variables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.variables)

    def __len__(self) -> int:
        return len(self.variables)

    def to_dict(self) -> dict[str, Any]:
        """The result without its tokens, as JSON data."""
        found = {each.name: plain(getattr(self, each.name)) for each in fields(self) if each.name != "tokens"}
        return {**found, "usage": plain(asdict(self.usage))}

    def to_json(self) -> str:
        """`to_dict` as one line."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def __repr__(self) -> str:
        """One line: the end of the text, the values and the number of generated tokens."""
        text = self.prompt if len(self.prompt) <= SHOWN else f"...{self.prompt[-SHOWN:]}"
        parts = [repr(text), *(f"{name}={_cut(value)}" for name, value in self.variables.items())]
        if self.value is not None:
            parts.append(f"value={_cut(self.value)}")
        generated = sum(token.fate == "kept" and token.hole is not None for token in self.tokens)
        return f"Result({', '.join(parts)}, generated={generated})"

    def _repr_html_(self) -> str:
        """Output, tree and ledger in a notebook, with tokens coloured by source."""
        cost = self.usage.cost
        found = {
            "tokens": kept(self.tokens),
            "usage": self.usage.as_dict(),
            "cost": None if cost is None else {"amount": cost.amount, "told": cost.is_reported},
            "value": plain(self.value),
            "vars": plain(self.variables),
            "endings": dict(self.endings),
        }
        return fragment(found, self.prompt)

    def check_ledger(self) -> None:
        """Raises AssertionError unless the kept tokens spell the prompt and are those of the usage (law 6)."""
        kept = [token for token in self.tokens if token.fate == "kept"]
        output, usage = Counter(token.source for token in kept if token.hole is not None), self.usage
        sources = {"cache": usage.tokens_from_cache, "model": usage.tokens_from_model}
        sources |= {"draft": usage.draft_accepted, "forced": usage.tokens_forced}
        assert output == Counter(sources), f"the kept tokens come from {dict(output)}, the usage says {sources}"
        text, wanted = b"".join(token.data for token in kept), self.prompt.encode()
        where = next((at for at, pair in enumerate(zip(text, wanted, strict=False)) if pair[0] != pair[1]), len(wanted))
        around = slice(max(where - 20, 0), where + 20)
        assert text == wanted, f"the tokens spell {text[around]!r} where the prompt says {wanted[around]!r}"


class ResultList(list[Any]):
    """Answers of several rows: results, lists of results, or exceptions. A notebook shows the list as a table."""

    def _repr_html_(self) -> str:
        results = [answer for answer in self if isinstance(answer, Result)]
        holes = list(dict.fromkeys(name for result in results for name in result))
        returns = any(result.value is not None for result in results)
        columns = ["", *holes, *(["value"] if returns else [])]
        rows = []
        for number, answer in enumerate(self[:ROWS]):
            if isinstance(answer, Result):
                cells = [_cut(answer[name]) if name in answer else "" for name in holes]
                rows.append([f"{number}", *cells, *([_cut(answer.value)] if returns else [])])
            else:
                rows.append([f"{number}", _cut(answer)])
        more = f"<p>and {len(self) - ROWS:,} more</p>" if len(self) > ROWS else ""
        return framed(grid(columns, rows) + more)


def _cut(value: Any) -> str:
    """`repr` of a value, shortened in the middle."""
    shortened = reprlib.Repr()
    shortened.maxstring = shortened.maxother = SHOWN
    return shortened.repr(value)
