"""The text the demo model is trained on: written by this package alone, the same on every machine.

Every task is a module with `write(rng) -> Draft`. The mixture is balanced by characters, not by texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from corpus import arithmetic, choices, dates, drills, facts, jokes, lists, lookups, memory, records, stories
from corpus.draft import Draft

TASKS: dict[str, Callable[[Random], Draft]] = {
    "lists": lists.write,
    "jokes": jokes.write,
    "choices": choices.write,
    "dates": dates.write,
    "records": records.write,
    "arithmetic": arithmetic.write,
    "memory": memory.write,
    "drills": drills.write,
    "facts": facts.write,
    "lookups": lookups.write,
    "stories": stories.write,
    "packing": lists.write_in_order,
}


@dataclass(frozen=True, slots=True)
class Document:
    task: str
    text: str


def islice_chars(documents: Iterator[Document], chars: int) -> Iterator[Document]:
    """The first documents, until they have `chars` characters together."""
    for document in documents:
        chars -= len(document.text)
        yield document
        if chars <= 0:
            return


def documents(rng: Random, shares: dict[str, float]) -> Iterator[Document]:
    """Texts of all tasks without end; the task that is furthest behind its share of characters comes next."""
    written = dict.fromkeys(shares, 0)
    while True:
        name = min(shares, key=lambda task: written[task] / shares[task])
        draft = TASKS[name](rng)
        if draft.held_out:
            continue
        written[name] += len(draft.text)
        yield Document(name, draft.text)


def held_out_documents(task: str, seed: int, count: int) -> list[str]:
    """`count` different texts whose content no training text has."""
    rng = Random(f"{task}:{seed}")
    texts: dict[str, None] = {}
    for _ in range(400 * count):
        draft = TASKS[task](rng)
        if draft.held_out:
            texts[draft.text] = None
        if len(texts) == count:
            break
    return list(texts)
