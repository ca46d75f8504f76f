"""Tasks that every tool of the comparison plays: prompts, conditions, and the judgement of the texts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

THINGS = 4
CALLS = 10
SAMPLES = 5
EACH = 250
"""Number of values of each of the four conditions of the task `values`."""
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
FREE: dict[str, Any] = SCHEMA | {
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string"}}
}
DATE = r"20[0-9]{2}-[01][0-9]-[0-3][0-9]"
SUM = r"[0-9]{1,2} [+*-] [0-9]{1,2} ="
SHORT = r"[^\n]{1,30}\n"
_SYLLABLES = ("ba", "de", "fi", "go", "lu", "mo", "na", "pe", "ri", "su")
WORDS = (" function", *(f" {a}{b}{c}" for a in _SYLLABLES for b in _SYLLABLES for c in _SYLLABLES))[:1000]
PLACES = (
    *(" Rome", " Paris", " Oslo", " Bonn", " Lima", " Cairo", " Quito", " London", " Berlin", " Madrid", " Vienna"),
    *(" Lisbon", " Dublin", " Prague", " Warsaw", " Athens", " Moscow", " Tokyo", " Beijing", " Havana"),
)
LABELS = (" positive", " negative", " neutral")
_SUBJECTS = (
    *("film", "food", "room", "book", "game", "music", "trip", "show", "hotel", "beach", "lesson", "museum"),
    *("garden", "phone", "chair", "coffee", "train", "party", "market", "concert"),
)
_VERDICTS = (
    *("wonderful", "terrible", "as expected", "far too long", "a great joy", "not bad", "a waste of money"),
    *("better than the last one", "dull", "worth every minute"),
)
REVIEWS = tuple(f"The {subject} was {verdict}." for subject in _SUBJECTS for verdict in _VERDICTS)
_SHOTS = "Review: I loved it.\nMood: positive\nReview: I hated it.\nMood: negative\nReview: It exists.\nMood: neutral\n"
LABELLED = tuple(f"{_SHOTS}Review: {review}\nMood:" for review in REVIEWS)
TURNS = (
    "Name a large animal.",
    "Where does it live?",
    "What does it eat?",
    "How long does it live?",
    "Is it dangerous?",
    "Name another one.",
)
DOCUMENT = "".join(
    f"On day {day} the {_SUBJECTS[day % 20]} of{PLACES[day % 19]} cost {day * 7 % 90 + 3} coins and was"
    f" {_VERDICTS[day % 7]}.\n"
    for day in range(1, 101)
)
"""About 2,000 tokens."""
EDITED = DOCUMENT + "On day 101 nothing happened.\n"
QUESTIONS = (
    "What did the film of day 20 cost?",
    "Where was the food of day 41?",
    "How was the book of day 3?",
    "What happened on the last day?",
    "Which day was the first?",
)


class Task(NamedTuple):
    """A task. `kind` is how a tool plays it, see `player.py`. `broken` counts the texts that break their condition.

    `network` is the model: `chosen` for that of `--model`, `tiny` where only the conditions count. Before a task with
    `first`, that task is played by another process, which may leave files behind.
    """

    title: str
    kind: str
    prompts: tuple[str, ...]
    given: Any
    broken: Callable[[Sequence[str]], int]
    network: str = "chosen"
    first: str = ""


def _is_record(text: str, is_bounded: bool = True) -> bool:
    try:
        found = json.loads(text)
    except ValueError:
        return False
    if not isinstance(found, dict) or [*found] != SCHEMA["required"]:
        return False
    name, age, city = found.values()
    if not (isinstance(name, str) and isinstance(age, int) and isinstance(city, str)):
        return False
    return not is_bounded or (len(name) <= 20 and len(city) <= 20 and 0 <= age <= 120)


def _all(count: int, is_right: Callable[[str], bool]) -> Callable[[Sequence[str]], int]:
    """Number of wrong texts among `count`; missing ones are wrong."""
    return lambda texts: sum(not is_right(text) for text in texts) + max(0, count - len(texts))


def _matching(count: int, pattern: str) -> Callable[[Sequence[str]], int]:
    return _all(count, lambda text: re.fullmatch(pattern, text) is not None)


def _line(text: str) -> bool:
    return "\n" not in text


def _wrong_values(texts: Sequence[str]) -> int:
    places, dates, lines, records = (texts[at * EACH : (at + 1) * EACH] for at in range(4))
    right = [text in PLACES for text in places] + [_is_record(text) for text in records]
    right += [re.fullmatch(DATE, text) is not None for text in dates]
    right += [re.fullmatch(SHORT, text) is not None for text in lines]
    return 4 * EACH - sum(right)


PERSON = ("A person as JSON with name, age and city:\n",)
TASKS = {
    "template": Task(
        "template with four holes", "list", ("A list of things to pack for the beach:\n-",), "\n", _all(THINGS, _line)
    ),
    "option": Task(
        "one of three long options",
        "choice",
        ("def best(numbers: list[int]):\n    '''Returns",),
        OPTIONS,
        _all(1, OPTIONS.__contains__),
    ),
    "calls": Task(
        "ten calls of a calculator", "calls", ("Ten exercises with their results.\n",), SUM, _matching(CALLS, SUM)
    ),
    "record": Task("JSON record with conditions", "json", PERSON, SCHEMA, _all(1, _is_record)),
    "free": Task("JSON record without conditions", "json", PERSON, FREE, _all(1, lambda text: _is_record(text, False))),
    "date": Task(
        "date by a regular expression",
        "regex",
        ("The conference began on the day (year-month-day) ",),
        DATE,
        _matching(1, DATE),
    ),
    "words": Task(
        "one of 1,000 words", "choice", ("In Python, the keyword def begins a",), WORDS, _all(1, WORDS.__contains__)
    ),
    "scores": Task(
        "probabilities of 20 options",
        "scores",
        ("My favourite city in the world is",),
        PLACES,
        _all(1, PLACES.__contains__),
    ),
    "samples": Task(
        "five samples of one answer",
        "samples",
        ("Question: Why is the sky blue?\nShort answer:",),
        r"[^\n]+\n",
        _all(SAMPLES, _line),
    ),
    "labels": Task(
        "few-shot labels of 200 rows",
        "labels",
        LABELLED,
        LABELS,
        _all(len(REVIEWS), LABELS.__contains__),
    ),
    "again": Task(
        "the same labels again, in a new process",
        "labels",
        LABELLED,
        LABELS,
        _all(len(REVIEWS), LABELS.__contains__),
        first="labels",
    ),
    "chat": Task("chat of six turns", "chat", ("A talk about animals.\n",), TURNS, _all(len(TURNS), _line)),
    "document": Task(
        "five questions about 2,000 tokens", "questions", (DOCUMENT,), QUESTIONS, _all(len(QUESTIONS), _line)
    ),
    "edited": Task(
        "the same with a line more, in a new process",
        "questions",
        (EDITED,),
        QUESTIONS,
        _all(len(QUESTIONS), _line),
        first="document",
    ),
    "values": Task(
        "1,000 drawn values of four conditions, from a tiny network", "values", ("It is",), None, _wrong_values, "tiny"
    ),
}
