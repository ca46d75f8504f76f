"""The text the demo model is trained on: written by this package alone, the same on every machine.

Every task is a module with `write(rng) -> Draft`. The mixture is balanced by characters, not by texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from corpus import arithmetic, choices, dates, drills, facts, jokes, lists, memory, records
from corpus.draft import Draft


@dataclass(frozen=True, slots=True)
class Task:
    write: Callable[[Random], Draft]
    share: float
    """Its share of all characters."""
    early_share: float
    """Its share at the beginning: copying is learned suddenly, and everything that copies waits for it."""


TASKS = {
    "lists": Task(lists.write, 0.09, 0.05),
    "jokes": Task(jokes.write, 0.11, 0.05),
    "choices": Task(choices.write, 0.1, 0.05),
    "dates": Task(dates.write, 0.08, 0.04),
    "records": Task(records.write, 0.1, 0.1),
    "arithmetic": Task(arithmetic.write, 0.14, 0.1),
    "memory": Task(memory.write, 0.2, 0.24),
    "drills": Task(drills.write, 0.12, 0.34),
    "facts": Task(facts.write, 0.06, 0.03),
}


@dataclass(frozen=True, slots=True)
class Document:
    task: str
    text: str


def training_documents(seed: int, early_chars: int) -> Iterator[Document]:
    """Texts of all tasks without end; the task that is furthest behind its share comes next.

    The first `early_chars` characters are shared out by the early shares.
    """
    rng = Random(seed)
    early = {name: task.early_share for name, task in TASKS.items()}
    later = {name: task.share for name, task in TASKS.items()}
    yield from islice_chars(_mixed(rng, early), early_chars)
    yield from _mixed(rng, later)


def islice_chars(documents: Iterator[Document], chars: int) -> Iterator[Document]:
    """The first documents, until they have `chars` characters together."""
    for document in documents:
        chars -= len(document.text)
        yield document
        if chars <= 0:
            return


def _mixed(rng: Random, shares: dict[str, float]) -> Iterator[Document]:
    written = dict.fromkeys(shares, 0)
    while True:
        name = min(shares, key=lambda task: written[task] / shares[task])
        draft = TASKS[name].write(rng)
        if draft.held_out:
            continue
        written[name] += len(draft.text)
        yield Document(name, draft.text)


def held_out_documents(task: str, seed: int, count: int) -> list[str]:
    """`count` different texts whose content no training text has."""
    rng = Random(f"{task}:{seed}")
    texts: dict[str, None] = {}
    for _ in range(400 * count):
        draft = TASKS[task].write(rng)
        if draft.held_out:
            texts[draft.text] = None
        if len(texts) == count:
            break
    return list(texts)
