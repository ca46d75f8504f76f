"""Draws of genlm-control, for `fair.py`, by an interpreter of its own: `PYTHON genlm_runs.py FOLDER SEEDS JSON`.

JSON is a list of (prompt, pattern, rows); a text is a prompt, what matches its pattern, and a full stop. Prints, for
each of them and each sampler, the mean posterior of all seeds, the mean evidence, the particles, and the mean number of
rows of the model that a run looks at. Particles are doubled from 16 until a run looks at as many rows, or they are 256.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import warnings
from collections import Counter
from typing import Any

import numpy as np
import torch
from genlm.backend.llm import AsyncTransformer
from genlm.control import AWRS, SMC, BoolFSA, PromptedLLM, eager_token_sampler
from transformers import AutoModelForCausalLM, AutoTokenizer

MAX_TOKENS, RESAMPLE, MAX_PARTICLES = 24, 0.5, 256
SAMPLERS = {
    "AWRS": lambda network, condition: AWRS(network, condition.coerce(network, f=b"".join)),
    "eager": eager_token_sampler,
}


async def drawn(sampler: Any, particles: int, seeds: int, seen: set[tuple[int, ...]]) -> dict[str, Any]:
    mean, evidence, rows = Counter[str](), 0.0, 0
    for seed in range(seeds):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        seen.clear()
        found = await SMC(sampler)(n_particles=particles, ess_threshold=RESAMPLE, max_tokens=MAX_TOKENS)
        rows += len(seen)
        evidence += float(np.exp(found.log_ml)) / seeds
        for text, weight in found.decoded_posterior.items():
            mean[text] += float(weight) / seeds
    return {"mean": dict(mean), "evidence": evidence, "rows": rows / seeds, "particles": particles}


async def main(folder: str, seeds: str, cases: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model, seen = AsyncTransformer(network, AutoTokenizer.from_pretrained(folder)), set[tuple[int, ...]]()
    asked = model.next_token_logprobs

    async def counted(ids: list[int], **named: Any) -> Any:
        seen.add(tuple(ids))
        return await asked(ids, **named)

    model.next_token_logprobs = counted
    for prompt, pattern, least in json.loads(cases):
        prompted = PromptedLLM(model, eos_byte_strings=[b"."])
        prompted.set_prompt_from_str(prompt)
        for name, make in SAMPLERS.items():
            particles, found = 16, dict[str, Any]()
            while not found or (found["rows"] < least and particles <= MAX_PARTICLES):
                sampler = make(prompted, BoolFSA.from_regex(pattern))
                found = await drawn(sampler, particles, int(seeds), seen)
                particles *= 2
            print(json.dumps({"prompt": prompt, "sampler": name, **found}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
