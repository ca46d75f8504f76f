"""Records a run of each example with the demo model, for whoever looks at it on the page before running it.

`python playground/record.py` after a change of an example, of the demo model or of what lines tell; a test compares. A
recording that differs in its times alone is left as it is. `lq replay examples/recorded/NAME.lqrun` shows one.
"""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lmql_lite as lq
from lmql_lite.apps.playground.checks import query_of
from lmql_lite.apps.playground.runs import Journal, Scrub
from lmql_lite.observe.lines import as_object, choice_of

EXAMPLES = Path(__file__).parent.parent / "examples"
RECORDED = EXAMPLES / "recorded"
INPUTS: dict[str, dict[str, Any]] = json.loads((RECORDED / "inputs.json").read_text("utf-8"))
TYPED: dict[str, list[str]] = json.loads((RECORDED / "typed.json").read_text("utf-8"))
"""Lines that `input()` reads."""
SEED = 11
"""That of the example that draws; the others need none, and would be given another one each time."""


def place_of(example: Path) -> Path:
    return RECORDED / f"{example.stem}.lqrun"


async def recorded(example: Path) -> bytes:
    """The lines that the playground would tell of this run."""
    journal = Journal(example.stem, Scrub(()))
    typed = iter(TYPED.get(example.stem, ()))
    inputs = {**INPUTS.get(example.stem, {}), **({"input": lambda _: next(typed)} if example.stem in TYPED else {})}
    query = query_of({"name": example.name, "text": example.read_text("utf-8")})
    with TemporaryDirectory() as folder:  # one example names a file, where an earlier run may have left something
        place = str(Path(folder, "new.tokens"))
        async for event in query.stream(inputs, model="demo", session=lq.Session(), seed=SEED, cache=place):
            told = as_object(event) | choice_of(event)
            journal.add(told | ({"date": ""} if isinstance(event, lq.events.Started) else {}))
    return b"".join(journal.lines)


def alike(one: bytes, other: bytes) -> bool:
    """But for when each line was told, and the last digits of numbers, which are another machine's own."""
    mine, theirs = ([json.loads(line) for line in said.splitlines()] for said in (one, other))
    return len(mine) == len(theirs) and all(
        _same({**a, "ms": 0}, {**b, "ms": 0}) for a, b in zip(mine, theirs, strict=True)
    )


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float | int):
        return math.isclose(one, other, abs_tol=1e-3)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def main() -> None:
    examples = sorted(EXAMPLES.glob("*.lq"))
    for example in examples:
        place, found = place_of(example), asyncio.run(recorded(example))
        if not place.is_file() or not alike(place.read_bytes(), found):
            place.write_bytes(found)
    for place in {*RECORDED.glob("*.lqrun")} - {place_of(example) for example in examples}:
        place.unlink()


if __name__ == "__main__":
    main()
