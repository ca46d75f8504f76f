"""One task, played by one tool in this process: `PYTHON player.py TOOL TASK FOLDER RUNS`, in the tool's environment.

Prints one line of JSON: for each run forward passes, tokens fed, processor and wall seconds, and whether the conditions
held. A pass is a call of the network's `LlamaModel.forward`, whoever makes it; tokens fed are its rows times columns.
Each run after the first has another first line, so that no run has met the prompt of another.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
from tasks import OPTIONS, TASKS, THINGS, Task
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.models.llama.modeling_llama import LlamaModel

MAX_TOKENS = 60
Play = Callable[[Task, tuple[str, ...]], list[str]]
fed = {"passes": 0, "tokens": 0}


def count_passes() -> None:
    forward = LlamaModel.forward

    def counted(self: Any, *arguments: Any, **named: Any) -> Any:
        ids = named.get("input_ids", arguments[0] if arguments else None)
        given = ids if ids is not None else named["inputs_embeds"]
        fed["passes"] += 1
        fed["tokens"] += given.shape[0] * given.shape[1]
        return forward(self, *arguments, **named)

    LlamaModel.forward = counted


def ours(folder: str) -> Play:
    import lmql_lite as lq

    model, session = lq.model(f"local:{folder}"), lq.Session()

    def run(query: str, **inputs: Any) -> Any:
        return lq.run_sync(query, inputs, model=model, session=session)

    def play(task: Task, prompts: tuple[str, ...]) -> list[str]:
        given, prompt = task.given, prompts[0]
        if task.kind == "list":
            header = f"argmax(max_tokens={MAX_TOKENS})\n    "
            stops = " and ".join(f'STOPS_AT({name}, "\\n")' for name in "ABCD")
            query = f'{header}"{{prompt}}[A]-[B]-[C]-[D]"\nwhere\n    {stops}'
            found = run(query, prompt=prompt)
            return [found[name].rstrip("\n") for name in "ABCD"]
        if task.kind == "choice":
            return [run('"{prompt}[X]" where X in options', prompt=prompt, options=list(given))["X"]]
        if task.kind == "json":
            import pydantic

            text = pydantic.Field(max_length=20)
            kind = pydantic.create_model(
                "Person",
                name=(str, text),
                age=(int, pydantic.Field(ge=0, le=120)),
                city=(str, pydantic.Field(max_length=20)),
            )
            return [run('"{prompt}[X: kind]"', prompt=prompt, kind=kind)["X"].model_dump_json()]
        if task.kind == "regex":
            return [run('"{prompt}[X]" where REGEX(X, pattern)', prompt=prompt, pattern=given)["X"]]
        if task.kind == "scores":
            return [lq.score_sync(prompt, list(given), model=model, session=session).best]
        rows = [{"prompt": each, "options": list(given)} for each in prompts]
        query = lq.compile('"{prompt}[X]" where X in options')
        return [each["X"] for each in query.map_sync(rows, model=model, session=session)]

    return play


def generating(folder: str) -> Play:
    """transformers: `generate`, and options scored together by hand. It has no other conditions."""
    tokenizer, network = loaded(folder)

    @torch.inference_mode()
    def written(prompt: str, **options: Any) -> str:
        ids = tokenizer(prompt, return_tensors="pt")
        kept = {"max_new_tokens": MAX_TOKENS, "do_sample": False, "pad_token_id": 0, **options}
        out = network.generate(**ids, **kept, tokenizer=tokenizer)
        return tokenizer.decode(out[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)

    @torch.inference_mode()
    def best(prompt: str, options: tuple[str, ...]) -> str:
        start = tokenizer(prompt)["input_ids"]
        ways = [tokenizer(option)["input_ids"] for option in options]
        head = network(torch.tensor([start]), use_cache=True)
        first = head.logits[0, -1].log_softmax(-1)
        longest = max(map(len, ways))
        head.past_key_values.batch_repeat_interleave(len(ways))
        padded = torch.tensor([way + [0] * (longest - len(way)) for way in ways])
        rows = network(padded, past_key_values=head.past_key_values).logits.log_softmax(-1)
        sums = [
            float(first[way[0]]) + sum(float(rows[at, place, token]) for place, token in enumerate(way[1:]))
            for at, way in enumerate(ways)
        ]
        return options[sums.index(max(sums))]

    def play(task: Task, prompts: tuple[str, ...]) -> list[str]:
        if task.kind == "list":
            text, found = prompts[0], []
            for _ in range(THINGS):
                added = written(text, stop_strings=["\n"])
                found.append(added.rstrip("\n"))
                text += added.rstrip("\n") + "\n-"
            return found
        if task.kind in ("choice", "scores", "labels"):
            return [best(prompt, task.given) for prompt in prompts]
        return [written(prompts[0], **({"max_new_tokens": 12} if task.kind == "regex" else {}))]

    return play


def guidance(folder: str) -> Play:
    import guidance as g

    tokenizer, network = loaded(folder)
    tokenizer.bos_token = None  # it would be put before every prompt
    model = g.models.Transformers(network, tokenizer, echo=False)

    def play(task: Task, prompts: tuple[str, ...]) -> list[str]:
        here = model + prompts[0]
        if task.kind == "list":
            for name in "ABCD"[:THINGS]:
                here += g.gen(name, stop="\n", max_tokens=MAX_TOKENS, temperature=0.0) + "\n-" * (name != "D")
            return [here[name] for name in "ABCD"]
        if task.kind == "choice":
            return [(here + g.select(list(task.given), name="X"))["X"]]
        if task.kind == "json":
            return [(here + g.json(name="X", schema=task.given, temperature=0.0, max_tokens=MAX_TOKENS))["X"]]
        if task.kind == "regex":
            return [(here + g.gen("X", regex=task.given, temperature=0.0, max_tokens=MAX_TOKENS))["X"]]
        if task.kind == "labels":
            return [(model + prompt + g.select(list(task.given), name="X"))["X"] for prompt in prompts]
        raise NotImplementedError("it gives no probabilities of options")

    return play


def outlines(folder: str) -> Play:
    from typing import Literal

    import outlines as o

    tokenizer, network = loaded(folder)
    model = o.from_transformers(network, tokenizer)

    def play(task: Task, prompts: tuple[str, ...]) -> list[str]:
        kept = {"max_new_tokens": MAX_TOKENS, "do_sample": False}
        if task.kind == "list":
            text, found = prompts[0], []
            for _ in range(THINGS):
                added = o.Generator(model)(text, **kept, stop_strings=["\n"], tokenizer=tokenizer)
                found.append(added.rstrip("\n"))
                text += added.rstrip("\n") + "\n-"
            return found
        if task.kind in ("choice", "labels"):
            generator = o.Generator(model, Literal[tuple(task.given)])
            return [generator(prompt, **kept) for prompt in prompts]
        if task.kind == "json":
            return [o.Generator(model, o.json_schema(json.dumps(task.given)))(prompts[0], **kept)]
        if task.kind == "regex":
            return [o.Generator(model, o.regex(task.given))(prompts[0], **kept)]
        raise NotImplementedError("it gives no probabilities of options")

    return play


def loaded(folder: str) -> tuple[Any, Any]:
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return PreTrainedTokenizerFast.from_pretrained(folder), network


TOOLS = {"lmql_lite": ours, "transformers": generating, "guidance": guidance, "outlines": outlines}


def main(tool: str, name: str, folder: str, runs: str) -> None:
    torch.set_num_threads(1)
    count_passes()
    task, play, played = TASKS[name], TOOLS[tool](folder), list[dict[str, Any]]()
    try:
        play(TASKS["option"]._replace(given=OPTIONS[:2]), ("Warm up:",))
        for run in range(int(runs)):
            note = "" if run == 0 else f"Note {run}.\n"
            prompts = tuple(note + prompt for prompt in task.prompts)
            fed.update(passes=0, tokens=0)
            wall, cpu = time.perf_counter(), time.process_time()
            texts = play(task, prompts)
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            played.append({**fed, "cpu": cpu, "wall": wall, "holds": task.holds(texts), "texts": texts[:4]})
    except NotImplementedError as error:
        print(json.dumps({"cannot": str(error), "version": version(tool.replace("_", "-"))}))
        return
    print(json.dumps({"runs": played, "version": version(tool.replace("_", "-"))}))


if __name__ == "__main__":
    main(*sys.argv[1:])
