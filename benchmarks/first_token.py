"""The first token of SmolLM2: processor time of `lq run` beside a bare script of transformers, in new processes.

    python benchmarks/first_token.py [--runs 3] [--first]

The bare script loads the same weights and generates one token. With `--first`, both read the GGUF file and nothing is
known yet, as in the first process ever; otherwise the weights are converted and the probe's findings are known. The
processes take turns, on one thread. Medians, in seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from typing import Any

HELD_TO = 1.3
TEXT = "The capital of France is"
BARE = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, file = sys.argv[1:]
given = {"gguf_file": file} if file else {}
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **given).eval()
ids = AutoTokenizer.from_pretrained(folder, **given)("%s", return_tensors="pt").input_ids
with torch.inference_mode():
    print(int(model(input_ids=ids, use_cache=True, logits_to_keep=1).logits[0, -1].argmax()))
"""
STEPS = """
import json, time
at = [time.process_time()]
import torch, transformers, lmql_lite as lq
from lmql_lite.models.transformers import scorer
at.append(time.process_time())
probe = 0.0
def timed(*given, own=scorer.facts_of, **named):
    global probe
    begin = time.process_time()
    found = own(*given, **named)
    probe = time.process_time() - begin
    return found
scorer.facts_of = timed
model = lq.model("smol")
at.append(time.process_time())
lq.run_sync('"%s[X]" where len(TOKENS(X)) == 1', model=model)
at.append(time.process_time())
loaded = at[2] - at[1] - probe
print(json.dumps({"import": at[1] - at[0], "load": loaded, "probe": probe, "first token": at[3] - at[2]}))
"""
LQ = "import sys; from lmql_lite.apps.cli import main; sys.argv[0] = 'lq'; sys.exit(main())"
RUN = ["-c", LQ, "run", "--model", "smol", "-e", f'"{TEXT}[X]" where len(TOKENS(X)) == 1']


def seconds(arguments: list[str], *, first: bool) -> tuple[float, str]:
    """Processor time of a process, and its output. As a first process, it finds an empty home."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as home:
        if first:
            environment["LMQL_LITE_HOME"] = home
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{arguments} ended with {done.returncode}:\n{done.stderr}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--first", action="store_true", help="from the GGUF file, nothing known")
    options = parser.parse_args()
    from lmql_lite.models.model_files import located, smol_file

    file = smol_file()
    folder, name = (file.parent, file.name) if options.first else (located(str(file))[0], "")
    bare = ["-c", BARE % TEXT, str(folder), name]
    seconds(RUN, first=False)  # the files are in memory, and the findings of the probe on disk
    times: dict[str, list[float]] = {"bare script": [], "lq run": []}
    steps: list[dict[str, Any]] = []
    for _ in range(options.runs):
        times["bare script"].append(seconds(bare, first=options.first)[0])
        times["lq run"].append(seconds(RUN, first=options.first)[0])
        steps.append(json.loads(seconds(["-c", STEPS % TEXT], first=options.first)[1].splitlines()[-1]))
    for step in steps[0]:
        print(f"{step:20}{statistics.median(one[step] for one in steps):8.3f}")
    for which, found in times.items():
        print(f"{which:20}{statistics.median(found):8.2f}   {min(found):.2f} to {max(found):.2f}")
    ratio = statistics.median(times["lq run"]) / statistics.median(times["bare script"])
    print(f"{'ratio':20}{ratio:8.2f}   held to {HELD_TO}")
    return ratio > HELD_TO


if __name__ == "__main__":
    sys.exit(main())
