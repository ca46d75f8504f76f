"""Draws of `smc` and draws under masks alone: their distance to the exact posterior, on the demo model and SmolLM2.

    python -m benchmarks.fair [--particles 16] [--seeds 30] [--only NAME ...] [--genlm PYTHON]

The exact posterior and the law of masked draws are enumerated, over every spelling in tokens. Distances are total
variations: of the mean posterior of all seeds, and of masked draws. Held to: half of the latter, a mean evidence within
10 % of the enumerated one, one pass for each token of the longest text and one more, and one row for each particle and
token. Passes and rows are those of a first run, with nothing known.

PYTHON is an interpreter that has genlm-control. Its end of a text is the full stop that ends the texts here, so both
draw from one law; it has at least as many rows of the model in a run.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

import lmql_lite as lq
from benchmarks.__main__ import model_folder
from lmql_lite.models.base import Row, Scorer, ScoreRequest
from tests.properties.enumerated import Walk, distance
from tests.properties.test_fair_draws import ANIMALS, CASES, LOOKS, NEAR, PLACES, among, case, like, posterior

SMOLLM2 = {
    "a place": case("smol", "My favourite city in the world is [X].", X=among("X", PLACES)),
    "a time": case("smol", "The train leaves at [X].", X=like("X", "(1[0-9]|2[0-3]):[0-5][05]")),
    "a word": case("smol", "What are you doing? I am [X].", X=like("X", "(re|out)?(go|do|play|work|read)(ing|ed|s)")),
    "letters": case("smol", "The secret word is [X].", X=like("X", "[aen]{3}")),
    "a goal": case("smol", "The name of the dog is [X].", X=NEAR),
    "two holes": case("smol", "The [A] is [B].", A=among("A", ANIMALS), B=among("B", LOOKS)),
}
TRIED = {f"{name}, demo": asked for name, asked in CASES.items() if asked.model == "demo"}
TRIED |= {f"{name}, SmolLM2": asked for name, asked in SMOLLM2.items()}
SHARED = {
    "a place": ("My favourite city in the world is", " (" + "|".join(PLACES) + ")"),
    "a time": ("The train leaves at", " (1[0-9]|2[0-3]):[0-5][05]"),
    "letters": ("The secret word is", " [aen]{3}"),
}
"""Prompts and patterns that genlm-control draws from too; a full stop ends every text."""


class Counting(Scorer):
    """A model that counts its passes, and the rows that it scores."""

    def __init__(self, model: Scorer) -> None:
        self.model, self.passes, self.rows = model, 0, 0
        self.name, self.fingerprint, self.tokenizer = model.name, model.fingerprint, model.tokenizer
        self.context_length, self.epsilon = model.context_length, model.epsilon

    async def score(self, requests: Sequence[ScoreRequest]) -> list[list[Row]]:
        self.passes += 1
        self.rows += sum(len(request.positions) for request in requests)
        return await self.model.score(requests)


class Measured(NamedTuple):
    """Mean posterior and evidence of all seeds; passes and rows of the first run."""

    mean: dict[tuple[str, ...], float]
    evidence: float
    passes: int
    rows: int


def measured(model: Scorer, query: str, particles: int, seeds: int) -> Measured:
    counting, session, mean = Counting(model), lq.Session(), Counter[tuple[str, ...]]()
    evidence, passes, rows = 0.0, 0, 0
    for seed in range(seeds):
        result = lq.run_sync(f"smc(particles={particles}, seed={seed}) {query}", model=counting, session=session)
        if seed == 0:
            passes, rows = counting.passes, counting.rows
        assert result.posterior is not None
        evidence += math.exp(result.posterior.evidence) / seeds
        for values, weight in posterior(result).items():
            mean[values] += weight / seeds
    return Measured(dict(mean), evidence, passes, rows)


def beside_genlm(python: str, names: list[str], particles: int, seeds: int) -> Iterator[str]:
    """Rows of the table that has genlm-control beside us."""
    model = lq.model("smol")
    assert isinstance(model, Scorer)
    folder = str(model_folder("smollm2"))
    for name in names:
        prompt, pattern = SHARED[name]
        asked = case("smol", f"{prompt}[X].", X=like("X", pattern))
        law = Walk(model, asked.parts).run()
        ours = measured(model, asked.query, particles, seeds)
        cells = [f"smc, {particles} particles | {distance(ours.mean, law.posterior):.3f} | "]
        cells[0] += f"{ours.evidence / law.evidence:.3f} | {ours.rows}"
        cases = json.dumps([(prompt, pattern, ours.rows)])
        command = [python, str(Path(__file__).with_name("genlm_runs.py")), folder, str(seeds), cases]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        for theirs in map(json.loads, done.stdout.splitlines()):
            mean = {(text,): weight for text, weight in theirs["mean"].items()}
            what = f"genlm-control {theirs['sampler']}, {theirs['particles']} particles"
            counts = f"{theirs['evidence'] / law.evidence:.3f} | {theirs['rows']:.0f}"
            cells.append(f"{what} | {distance(mean, law.posterior):.3f} | {counts}")
        yield from (f"| {name} | {cell} |" for cell in cells)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--particles", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--only", nargs="*", choices=TRIED, default=list(TRIED), metavar="NAME")
    parser.add_argument("--genlm", metavar="PYTHON", help="interpreter that has genlm-control")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{options.particles} particles, {options.seeds} seeds.\n")
    print("| condition | texts | masked draws | smc | evidence, mean / exact | passes | rows | |")
    print("|---|--:|--:|--:|--:|--:|--:|---|")
    missed = False
    for name in options.only:
        model = lq.model(str(TRIED[name].model))
        assert isinstance(model, Scorer)
        law = Walk(model, TRIED[name].parts).run()
        mean, evidence, passes, rows = measured(model, TRIED[name].query, options.particles, options.seeds)
        near, masked = distance(mean, law.posterior), distance(law.masked, law.posterior)
        ratio, room = evidence / law.evidence, options.particles * law.longest
        is_held = near <= masked / 2 and abs(ratio - 1) <= 0.1 and passes <= law.longest + 1 and rows <= room
        missed |= not is_held
        counts = f"{len(law.exact)} | {masked:.3f} | {near:.3f} | {ratio:.3f}"
        bounds = f"{passes} of {law.longest + 1} | {rows} of {room}"
        print(f"| {name} | {counts} | {bounds} | {'held' if is_held else 'missed'} |", flush=True)
    if options.genlm:
        print("\n| condition | | distance | evidence, mean / exact | rows of a run |\n|---|---|--:|--:|--:|")
        for line in beside_genlm(options.genlm, list(SHARED), options.particles, options.seeds):
            print(line, flush=True)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
