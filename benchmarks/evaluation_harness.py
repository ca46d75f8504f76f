"""One multiple-choice task by `lq eval` and by lm-evaluation-harness, on the folder of the demo model.

    python benchmarks/evaluation_harness.py --harness PYTHON [--rows 200]

PYTHON is an interpreter that has the packages lm-eval, torch and transformers. Both run as commands, one after the
other, offline; CPU is that of the command and of what it started, with start and imports.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
TASK = """\
task: rooms
dataset_path: json
dataset_kwargs: {data_files: {test: rooms.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "Review: {{review}}\\nSentiment:"
doc_to_choice: ["very positive", "negative", "mixed"]
doc_to_target: label
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
THINGS, WORDS = ("room", "food", "bed", "view", "staff"), ("dirty", "lovely", "fine", "cold", "great")


def command(folder: Path, *arguments: str) -> tuple[float, float]:
    """CPU and wall seconds of a command."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf")}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(arguments, cwd=folder, env=environment, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--harness", required=True, metavar="PYTHON")
    parser.add_argument("--rows", type=int, default=200)
    given = parser.parse_args()
    chance = random.Random(1)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "rooms.yaml").write_text(TASK)
        reviews = (f"The {chance.choice(THINGS)} was {chance.choice(WORDS)}, day {n}." for n in range(given.rows))
        rows = [{"review": review, "label": chance.randrange(3)} for review in reviews]
        (folder / "rooms.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        lq = (sys.executable, "-m", "lmql_lite", "eval", "--from", "lm-eval", "rooms.yaml")
        model = ROOT / "demo" / "model"
        found = {
            "lq eval, demo": command(folder, *lq, "--model", "demo", "-o", "demo"),
            "lq eval, the same folder by torch": command(folder, *lq, "--model", f"local:{model}", "-o", "torch"),
            "lm-eval, the same folder by torch": command(
                folder, given.harness, "-m", "lm_eval", "--model", "hf", "--model_args", f"pretrained={model}",
                "--tasks", "rooms", "--include_path", ".", "--device", "cpu", "--batch_size", "8", "--log_samples",
                "--output_path", "harness",
            ),
        }  # fmt: skip
        for name, (cpu, wall) in found.items():
            print(f"{name:<36} {cpu:7.1f} s CPU {wall:7.1f} s wall")
        (path,) = folder.glob("harness/*/samples_rooms_*.jsonl")
        theirs = {each["doc_id"]: each for each in map(json.loads, path.read_text().splitlines())}
        missed = 0
        for run in ("demo", "torch"):
            subprocess.run((*lq[:4], "export", run, "--as", "lm-eval", "-o", f"{run}.jsonl"), cwd=folder, check=True)
            ours = [json.loads(line) for line in (folder / f"{run}.jsonl").read_text().splitlines()]
            same = sum(
                each[name] == theirs[each["doc_id"]][name] for each in ours for name in ("acc", "acc_norm")
            )  # fmt: skip
            accuracy = sum(each["acc"] for each in ours) / len(ours)
            missed += same < 2 * len(ours)
            print(f"{run:<36} acc {accuracy:.4f}, {same} of {2 * len(ours)} scores equal")
        accuracy = sum(each["acc"] for each in theirs.values()) / len(theirs)
        print(f"{'lm-eval':<36} acc {accuracy:.4f}")
        for name in ("lq eval, demo", "lq eval, the same folder by torch"):
            ratio = found["lm-eval, the same folder by torch"][0] / found[name][0]
            missed += ratio < 1
            print(f"{name:<36} {ratio:7.2f}x >= 1x of lm-eval's CPU {'' if ratio >= 1 else 'MISSED'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
