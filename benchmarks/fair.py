"""Draws of `smc` and draws under masks alone: their distance to the exact posterior, on SmolLM2.

    python -m benchmarks.fair [--particles 16] [--seeds 150] [--only NAME ...]

The exact posterior and the law of masked draws are enumerated, over every spelling in tokens. Distances are total
variations: of the mean posterior of all seeds, and of masked draws. Held to: half of the latter, a mean evidence within
10 % of the enumerated one, and one pass for each token of the longest text and one more.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter

import torch

import lmql_lite as lq
from lmql_lite.models.base import Scorer
from tests.properties.enumerated import Walk, distance
from tests.properties.test_fair_draws import ANIMALS, LOOKS, NEAR, PLACES, among, case, like, posterior

CASES = {
    "one of 12 places": case("smol", "My favourite city in the world is [X].", X=among("X", PLACES)),
    "a time": case("smol", "The train leaves at [X].", X=like("X", "(1[0-9]|2[0-3]):[0-5][05]")),
    "a word": case("smol", "What are you doing? I am [X].", X=like("X", "(re|out)?(go|do|play|work|read)(ing|ed|s)")),
    "three letters": case("smol", "The secret word is [X].", X=like("X", "[aen]{3}")),
    'contains "ta"': case("smol", "The name of the dog is [X].", X=NEAR),
    "two holes": case("smol", "The [A] is [B].", A=among("A", ANIMALS), B=among("B", LOOKS)),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--particles", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=150)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="NAME")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = lq.model("smol")
    assert isinstance(model, Scorer)
    print("| condition | texts | masked draws | smc | evidence, mean / exact | passes | processor s of a run | |")
    print("|---|--:|--:|--:|--:|--:|--:|---|")
    missed = False
    for name in options.only:
        law, session, mean = Walk(model, CASES[name].parts).run(), lq.Session(), Counter[tuple[str, ...]]()
        evidence, passes, begin = 0.0, 0, time.process_time()
        for seed in range(options.seeds):
            query = f"smc(particles={options.particles}, seed={seed}) {CASES[name].query}"
            result = lq.run_sync(query, model=model, session=session)
            assert result.posterior is not None
            evidence += math.exp(result.posterior.evidence) / options.seeds
            passes = max(passes, result.usage.forward_passes or 0)
            for values, weight in posterior(result).items():
                mean[values] += weight / options.seeds
        seconds = (time.process_time() - begin) / options.seeds
        near, masked = distance(dict(mean), law.posterior), distance(law.masked, law.posterior)
        ratio = evidence / law.evidence
        is_held = near <= masked / 2 and abs(ratio - 1) <= 0.1 and passes <= law.longest + 1
        missed |= not is_held
        counts = f"{len(law.exact)} | {masked:.3f} | {near:.3f} | {ratio:.3f} | {passes} of {law.longest + 1}"
        print(f"| {name} | {counts} | {seconds:.2f} | {'' if is_held else 'missed'} |", flush=True)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
