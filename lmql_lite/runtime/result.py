"""What a run gives back: the text, the values, every token with its provenance, and the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from lmql_lite.constraints.matcher import Ending
from lmql_lite.errors import did_you_mean
from lmql_lite.runtime.budget import Cost
from lmql_lite.runtime.drawing import fragment
from lmql_lite.tokens import Token


@dataclass(frozen=True, slots=True)
class Usage:
    """The ledger. Counted, never estimated; None where a server did not report it (law 6).

    `requests` counts calls to a Completer, `forward_passes` calls of a Scorer that this run took part in.
    `completion_tokens` is every token that was decided for a hole, `wasted_tokens` those of them that do not stand in
    the prompt. The `tokens_from_*`, `tokens_forced` and `draft_accepted` count what stands there:
    `kept output = cache + model + draft accepted + forced`.

    Of a server `prompt_tokens`, `completion_tokens` and `provider_cached_tokens` are what it says itself, and None
    where a request was closed before it could (S32); `received_tokens` is what arrived, and `wasted_tokens` those of
    them of which no part stands in the prompt. `cost` is set where the run has prices.
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
    cost: Cost | None = None

    def as_dict(self) -> dict[str, int | None]:
        """The counts by name, without the cost."""
        counts = asdict(self)
        del counts["cost"]
        return counts


@dataclass(frozen=True, slots=True)
class OptionScores:
    """What the model thinks of each option as the text that comes next (S25).

    `logprobs` are natural logarithms, summed over the option's `tokens`; `probabilities` their softmax. The first
    tokens of an option may say the end of the prompt, too. `usage` is what the answer cost.
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


@dataclass(frozen=True, slots=True)
class Result:
    """A finished run.

    `prompt` is the whole text, program and model together; `variables` the last value of each hole, of its type where
    it has one, and under `P(X)` the (value, probability) pairs of a hole X with a `distribution`; `value` what the
    query returned (None without `return`). `endings` says how each hole ended last. `seed` repeats the run exactly.
    `notices` are sentences that a user should read. `score` is the sum of the raw log-probabilities of the tokens that
    were chosen: of several results the best one has the highest.
    """

    prompt: str
    variables: Mapping[str, Any]
    value: Any
    tokens: tuple[Token, ...] = field(repr=False)
    usage: Usage = field(repr=False)
    endings: Mapping[str, Ending] = field(repr=False)
    seed: int
    model: str
    notices: tuple[str, ...] = ()
    score: float = 0.0

    def __getitem__(self, name: str) -> Any:
        """The value of a hole. Raises KeyError where there is none of that name."""
        if name not in self.variables:
            known = f"there are {', '.join(self.variables)}" if self.variables else "the query has filled none"
            raise KeyError(f"no hole {name!r} was filled; {did_you_mean(name, self.variables) or known}")
        return self.variables[name]

    def _repr_html_(self) -> str:
        """The text in a notebook, each token in the colour of where it came from."""
        return fragment(self.tokens, self.usage.as_dict())

    def check_ledger(self) -> None:
        """Raises AssertionError unless the ledger adds up and the tokens spell the prompt (law 6)."""
        kept = [token for token in self.tokens if token.fate == "kept"]
        output = [token for token in kept if token.hole is not None]
        usage = self.usage
        counted = {
            "cache": usage.tokens_from_cache,
            "model": usage.tokens_from_model,
            "draft": usage.draft_accepted,
            "forced": usage.tokens_forced,
        }
        for source, count in counted.items():
            found = sum(token.source == source for token in output)
            assert found == count, f"{found} kept output tokens come from {source}, the ledger says {count}"
        assert len(output) == sum(count or 0 for count in counted.values()), "kept output does not add up"
        if usage.forward_passes is not None:  # a server counts its own, and does not say which they were
            assert usage.prompt_tokens == len(kept) - len(output), "the program's own tokens do not add up"
        text = b"".join(token.data for token in kept)
        wanted = self.prompt.encode()
        where = next((at for at, pair in enumerate(zip(text, wanted, strict=False)) if pair[0] != pair[1]), len(wanted))
        around = slice(max(where - 20, 0), where + 20)
        assert text == wanted, f"the tokens spell {text[around]!r} where the prompt says {wanted[around]!r}"
