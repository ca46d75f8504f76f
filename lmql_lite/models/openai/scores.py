"""Log-probabilities of given texts, from servers that report them: vLLM and SGLang.

A server tokenises prompt and option in one piece, so a token may span their border. The prompt is therefore scored
alone, too. The tokens that all texts share with it are the prompt, the rest of each text is its option.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lmql_lite.errors import ModelError
from lmql_lite.models.base import Prompt
from lmql_lite.models.openai.dialects import Body, Server
from lmql_lite.tokens import Tokenizer

Row = Sequence[tuple[object, float | None]]
"""Tokens of a text: identity and log-probability of each; the first one has none."""

_REASONS = {
    "llama-cpp-python": "scores them one position off",
    "llama.cpp": "tells no log-probabilities of a prompt",
    "ollama": "tells no log-probabilities of a prompt",
}


def refuse(name: str, server: Server) -> ModelError:
    """Error for a server that cannot score, to raise before anything is spent."""
    return ModelError(
        f"{name} cannot score options: its server {_REASONS.get(server.kind, 'does not score the text of a prompt')}",
        hint="vLLM and SGLang can, and local: models",
    )


def bodies(server: Server, model: str, prompts: Sequence[Prompt], tokenizer: Tokenizer | None = None) -> list[Body]:
    """Request bodies: one for all texts, in a chat one for each. With a tokenizer, texts are sent as ids (S12)."""
    common: Body = {"model": model, "max_tokens": 1, "temperature": 0.0}
    if server.kind == "vllm":
        common["prompt_logprobs"] = 0
    else:
        common |= {"echo": True, "logprobs": 1}
    if prompts[0][-1].role is None:
        return [common | {"prompt": [server.prompted(model, prompt, tokenizer)["prompt"] for prompt in prompts]}]
    return [common | server.prompted(model, prompt) for prompt in prompts]


def rows(server: Server, answer: Mapping[str, Any]) -> list[Row]:
    """Rows of the texts in an answer. Raises KeyError and the like for an answer without scores."""
    choices = sorted(answer["choices"], key=lambda choice: int(choice.get("index", 0)))
    if server.kind == "vllm":
        lists = [choice.get("prompt_logprobs") or answer["prompt_logprobs"] for choice in choices]
        return [[_actual(entry) for entry in entries] for entries in lists]
    told = [choice["logprobs"] for choice in choices]
    # the last token is the one that the server had to generate
    return [list(zip(one["tokens"], one["token_logprobs"], strict=True))[:-1] for one in told]


def _actual(entry: Mapping[str, Any] | None) -> tuple[object, float | None]:
    if entry is None:
        return None, None
    number, told = next(iter(entry.items()))
    return number, float(told["logprob"])


def sums(name: str, found: Iterable[Row]) -> tuple[float, ...]:
    """Log-probabilities of the options, from the rows of the prompt alone and of the prompt with each option."""
    base, *others = found
    begin = min((_common(base, row) for row in others), default=0)
    totals = []
    for row in others:
        scores = [score for _, score in row[begin:] if score is not None]
        if len(scores) < len(row) - begin:
            raise ModelError(f"{name} has no score of the first token", hint="begin the prompt with some text")
        totals.append(sum(scores))
    return tuple(totals)


def _common(one: Row, other: Row) -> int:
    """Number of leading tokens that two texts share."""
    places = range(min(len(one), len(other)))
    return next((place for place in places if one[place][0] != other[place][0]), len(places))
