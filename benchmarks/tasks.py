"""Tasks that every tool of the comparison plays: prompts, conditions, and the judgement whether a text met them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

THINGS = 4
OPTIONS = (
    " the largest of the numbers together with the position at which it stands in the list",
    " a new list that holds the same numbers in ascending order and leaves the first list alone",
    " the number of numbers that are greater than the mean of all numbers in the list",
)
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "city": {"type": "string", "maxLength": 20},
    },
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}
DATE = r"20[0-9]{2}-[01][0-9]-[0-3][0-9]"
_SYLLABLES = ("ba", "de", "fi", "go", "lu", "mo", "na", "pe", "ri", "su")
WORDS = (" function", *(f" {a}{b}{c}" for a in _SYLLABLES for b in _SYLLABLES for c in _SYLLABLES))[:1000]
PLACES = (
    *(" Rome", " Paris", " Oslo", " Bonn", " Lima", " Cairo", " Quito", " London", " Berlin", " Madrid", " Vienna"),
    *(" Lisbon", " Dublin", " Prague", " Warsaw", " Athens", " Moscow", " Tokyo", " Beijing", " Havana"),
)
LABELS = (" positive", " negative", " neutral")
REVIEWS = tuple(
    f"The {thing} was {word}."
    for thing in ("film", "food", "room", "book", "game", "music", "trip", "show")
    for word in ("wonderful", "terrible", "as expected", "far too long", "a great joy")
)
SHOTS = "Review: I loved it.\nMood: positive\nReview: I hated it.\nMood: negative\nReview: It exists.\nMood: neutral\n"


class Task(NamedTuple):
    """A task. `kind` is how a tool plays it: list, choice, json, regex, scores or labels. `holds` judges the texts."""

    title: str
    kind: str
    prompts: tuple[str, ...]
    given: Any
    holds: Callable[[Sequence[str]], bool]


def _is_record(texts: Sequence[str]) -> bool:
    try:
        found = json.loads(texts[0])
    except ValueError:
        return False
    if not isinstance(found, dict) or set(found) != set(SCHEMA["required"]):
        return False
    are_short = all(isinstance(found[name], str) and len(found[name]) <= 20 for name in ("name", "city"))
    return are_short and isinstance(found["age"], int) and 0 <= found["age"] <= 120


def _within(options: Sequence[str]) -> Callable[[Sequence[str]], bool]:
    return lambda texts: bool(texts) and all(text in options for text in texts)


TASKS = {
    "template": Task(
        "template with four holes",
        "list",
        ("A list of things to pack for the beach:\n-",),
        "\n",
        lambda texts: len(texts) == THINGS and all("\n" not in text for text in texts),
    ),
    "option": Task(
        "one of three long options",
        "choice",
        ("def best(numbers: list[int]):\n    '''Returns",),
        OPTIONS,
        _within(OPTIONS),
    ),
    "record": Task("JSON record", "json", ("A person as JSON with name, age and city:\n",), SCHEMA, _is_record),
    "date": Task(
        "date by a regular expression",
        "regex",
        ("The conference began on the day (year-month-day) ",),
        DATE,
        lambda texts: re.fullmatch(DATE, texts[0]) is not None,
    ),
    "words": Task("one of 1,000 words", "choice", ("In Python, the keyword def begins a",), WORDS, _within(WORDS)),
    "scores": Task(
        "probabilities of 20 options", "scores", ("My favourite city in the world is",), PLACES, _within(PLACES)
    ),
    "labels": Task(
        "few-shot labels of 40 rows",
        "labels",
        tuple(f"{SHOTS}Review: {review}\nMood:" for review in REVIEWS),
        LABELS,
        lambda texts: len(texts) == len(REVIEWS) and all(text in LABELS for text in texts),
    ),
}
