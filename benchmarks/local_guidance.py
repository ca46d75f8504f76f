"""Constrained argmax of guidance beside a bare loop of transformers, in an environment of guidance's own.

    PYTHON benchmarks/local_guidance.py FOLDER [--tokens 200] [--runs 2]

PYTHON is an interpreter that has guidance, torch and transformers before 5 (guidance 0.3.1 crops
caches in the older way); FOLDER holds a model. Prints one line of JSON, which `local.py --guidance PYTHON` reads: least
processor time on one thread of both, and the passes of a run of guidance.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from typing import Any

import guidance
import torch
import transformers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--runs", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(options.folder)
    network = transformers.AutoModelForCausalLM.from_pretrained(options.folder, dtype=torch.float32).eval()
    passes, numbers = [0], itertools.count(1)
    network.register_forward_hook(lambda *_: passes.__setitem__(0, passes[0] + 1))
    model = guidance.models.Transformers(network, tokenizer, echo=False)
    # a condition that no text of so few tokens meets, so that none ends early
    grammar = guidance.gen(name="X", regex=r"[a-z ,.]{4000}", max_tokens=options.tokens, temperature=0.0)

    def prompt() -> str:
        return f"Note {next(numbers)}: words 0 words 1 then"

    def constrained() -> Any:
        return model + prompt() + grammar

    @torch.inference_mode()
    def bare() -> None:
        ids, past = torch.tensor([tokenizer.encode(prompt())]), transformers.DynamicCache()
        for _ in range(options.tokens):
            out = network(input_ids=ids, past_key_values=past, use_cache=True, logits_to_keep=1)
            ids = out.logits[:, -1].argmax(-1, keepdim=True)

    least, counted = {"guidance": float("inf"), "bare": float("inf")}, 0
    constrained()  # what is built once
    for _ in range(options.runs):
        for name, work in (("bare", bare), ("guidance", constrained)):
            passes[0], begin = 0, time.process_time()
            work()
            least[name] = min(least[name], time.process_time() - begin)
            counted = passes[0]
    print(json.dumps({**least, "passes": counted}))


if __name__ == "__main__":
    main()
