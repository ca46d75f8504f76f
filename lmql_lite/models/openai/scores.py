"""The log-probabilities of texts that a server is given, where it tells them: vLLM and SGLang.

A server tokenises a prompt and an option in one piece, so a token may stand on the border. The prompt is therefore
scored alone too: what all texts have of its tokens is the prompt, the rest of each is its option.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lmql_lite.errors import ModelError
from lmql_lite.models.base import Prompt
from lmql_lite.models.openai.dialects import Body, Server
from lmql_lite.tokens import Tokenizer

Row = Sequence[tuple[object, float | None]]
"""A text: what identifies each of its tokens, and its log-probability; the first one has none."""

_REASONS = {
    "llama-cpp-python": "scores them one position off",
    "llama.cpp": "tells no log-probabilities of a prompt",
    "ollama": "tells no log-probabilities of a prompt",
}


def refuse(name: str, server: Server) -> ModelError:
    """Said before anything is spent."""
    return ModelError(
        f"{name} cannot score options: its server {_REASONS.get(server.kind, 'does not score the text of a prompt')}",
        hint="vLLM and SGLang can, and local: models",
    )


def bodies(server: Server, model: str, prompts: Sequence[Prompt], tokenizer: Tokenizer | None = None) -> list[Body]:
    """One request for all texts, in a chat one for each. With a tokenizer texts are sent as ids (S12)."""
    common: Body = {"model": model, "max_tokens": 1, "temperature": 0.0}
    if server.kind == "vllm":
        common["prompt_logprobs"] = 0
    else:
        common |= {"echo": True, "logprobs": 1}
    if prompts[0][-1].role is None:
        return [common | {"prompt": [server.prompted(model, prompt, tokenizer)["prompt"] for prompt in prompts]}]
    return [common | server.prompted(model, prompt) for prompt in prompts]


def rows(server: Server, answer: Mapping[str, Any]) -> list[Row]:
    """The texts of an answer. Raises KeyError and the like where it is none."""
    choices = sorted(answer["choices"], key=lambda choice: int(choice.get("index", 0)))
    if server.kind == "vllm":
        lists = [choice.get("prompt_logprobs") or answer["prompt_logprobs"] for choice in choices]
        return [[_actual(entry) for entry in entries] for entries in lists]
    told = [choice["logprobs"] for choice in choices]
    # the last token is the one that had to be generated
    return [list(zip(one["tokens"], one["token_logprobs"], strict=True))[:-1] for one in told]


def _actual(entry: Mapping[str, Any] | None) -> tuple[object, float | None]:
    if entry is None:
        return None, None
    number, told = next(iter(entry.items()))
    return number, float(told["logprob"])


def sums(name: str, found: Iterable[Row]) -> tuple[float, ...]:
    """The log-probabilities of the options, from the rows of the prompt alone and of the prompt with each of them."""
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
    """How many tokens two texts begin with alike."""
    places = range(min(len(one), len(other)))
    return next((place for place in places if one[place][0] != other[place][0]), len(places))
