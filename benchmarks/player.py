"""One task, played by one tool in this process: `PYTHON player.py TOOL TASK FOLDER STORE RUNS`, with the tool's Python.

Prints one line of JSON: for each run forward passes, tokens fed, processor and wall seconds, and the number of texts
that broke their condition. A pass is a call of the network's `LlamaModel.forward`, whoever makes it, in this process or
one that it started; tokens fed are its rows times columns. Each run after the first has another first line, so that no
run has met the prompt of another. FOLDER has the model; files for later processes may be left in the folder STORE.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
from tasks import CALLS, EACH, PLACES, SAMPLES, SCHEMA, SHORT, SUM, TASKS, THINGS, Task
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.models.llama.modeling_llama import LlamaModel

LONG = 30
"""Seconds of wall time of a run after which there is no second one."""
MAX_TOKENS = 60
TURN_TOKENS = 20
SAMPLE_TOKENS = 24
Ways = dict[str, Callable[[Task, tuple[str, ...]], list[str]]]
"""By kind of task, the function that plays it and returns the texts."""
passes, tokens = multiprocessing.Value("q", 0), multiprocessing.Value("q", 0)


def count_passes() -> None:
    forward = LlamaModel.forward

    def counted(self: Any, *arguments: Any, **named: Any) -> Any:
        ids = named.get("input_ids", arguments[0] if arguments else None)
        given = ids if ids is not None else named["inputs_embeds"]
        with passes.get_lock():
            passes.value += 1
            tokens.value += given.shape[0] * given.shape[1]
        return forward(self, *arguments, **named)

    LlamaModel.forward = counted


def processor_seconds() -> float:
    """Of this process and those that it started and that still run."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def value_of(step: str) -> str:
    """Result of an exercise such as `3 + 4 =`; empty if it is none."""
    found = re.fullmatch(r"\s*(\d+) ([+*-]) (\d+) =", step)
    if found is None:
        return ""
    left, right = int(found[1]), int(found[3])
    return f" { ({'+': left + right, '*': left * right, '-': left - right}[found[2]]) }"


def exercises(written: Callable[[str], str], prompt: str) -> list[str]:
    """Plays `calls` for a tool that writes one exercise after a text."""
    steps = list[str]()
    for number in range(1, CALLS + 1):
        step = written(prompt + f"{number}. ")
        prompt += f"{number}. {step}{value_of(step)}\n"
        steps.append(step)
    return steps


def talk(written: Callable[[str], str], task: Task, prompt: str) -> list[str]:
    """Plays `chat` for a tool that writes one line after a text."""
    lines = list[str]()
    for turn in task.given:
        prompt += f"User: {turn}\nAssistant:"
        lines.append(written(prompt).rstrip("\n"))
        prompt += lines[-1] + "\n"
    return lines


def asked(task: Task, prompt: str) -> list[str]:
    """Prompts of `questions`."""
    return [f"{prompt}Question: {question}\nAnswer:" for question in task.given]


def ours(folder: str, store: str) -> Ways:
    import pydantic

    import lmql_lite as lq

    model, session, cache = lq.model(f"local:{folder}", kv=f"{store}/kv"), lq.Session(), f"{store}/a.tokens"

    def run(query: str, **inputs: Any) -> Any:
        return lq.run_sync(query, inputs, model=model, session=session, cache=cache)

    class Person(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=20)
        age: int = pydantic.Field(ge=0, le=120)
        city: str = pydantic.Field(max_length=20)

    class Free(pydantic.BaseModel):
        name: str
        age: int
        city: str

    def things(task: Task, prompts: tuple[str, ...]) -> list[str]:
        stops = " and ".join(f'STOPS_BEFORE({name}, "\\n")' for name in "ABCD")
        query = f'argmax(max_tokens={MAX_TOKENS})\n    "{{prompt}}[A]\\n-[B]\\n-[C]\\n-[D]"\nwhere\n    {stops}'
        found = run(query, prompt=prompts[0])
        return [found[name] for name in "ABCD"]

    def calls(task: Task, prompts: tuple[str, ...]) -> list[str]:
        query = (
            '"{prompt}"\nsteps = []\nfor number in range(1, count + 1):\n'
            '    "{number}. [STEP]" where REGEX(STEP, pattern)\n'
            '    "{value_of(STEP)}\\n"\n    steps.append(STEP)\nreturn steps'
        )
        found = run(query, prompt=prompts[0], count=CALLS, pattern=task.given, value_of=value_of)
        return list(found.value)

    def record(task: Task, prompts: tuple[str, ...]) -> list[str]:
        kind = Person if task.given is SCHEMA else Free
        return [
            run(f'argmax(max_tokens={MAX_TOKENS}) "{{prompt}}[X: kind]"', prompt=prompts[0], kind=kind)[
                "X"
            ].model_dump_json()
        ]

    def samples(task: Task, prompts: tuple[str, ...]) -> list[str]:
        header = f"sample(n={SAMPLES}, temperature=0.8, seed=1, max_tokens={SAMPLE_TOKENS})"
        found = run(header + ' "{prompt}[X]" where STOPS_BEFORE(X, "\\n")', prompt=prompts[0])
        return [each["X"] for each in found]

    def labels(task: Task, prompts: tuple[str, ...]) -> list[str]:
        rows = [{"prompt": prompt, "options": list(task.given)} for prompt in prompts]
        query = lq.compile('"{prompt}[X]" where X in options')
        return [each["X"] for each in query.map_sync(rows, model=model, session=session, cache=cache)]

    line = f'argmax(max_tokens={TURN_TOKENS}) "{{prompt}}[X]" where STOPS_BEFORE(X, "\\n")'

    def questions(task: Task, prompts: tuple[str, ...]) -> list[str]:
        rows = [{"prompt": prompt} for prompt in asked(task, prompts[0])]
        return [each["X"] for each in lq.compile(line).map_sync(rows, model=model, session=session, cache=cache)]

    def values(task: Task, prompts: tuple[str, ...]) -> list[str]:
        head = f'sample(n={EACH}, seed=1, max_tokens={MAX_TOKENS}) "{{prompt}}'
        prompt, pattern = prompts[0], '[X]" where REGEX(X, pattern)'
        found = [
            *run(head + '[X]" where X in places', prompt=prompt, places=list(PLACES)),
            *run(head + pattern, prompt=prompt, pattern=TASKS["date"].given),
            *run(head + pattern, prompt=prompt, pattern=SHORT),
        ]
        records = run(head + '[X: kind]"', prompt=prompt, kind=Person)
        return [*(each["X"] for each in found), *(each["X"].model_dump_json() for each in records)]

    return {
        "list": things,
        "calls": calls,
        "json": record,
        "samples": samples,
        "labels": labels,
        "questions": questions,
        "values": values,
        "choice": lambda task, prompts: [
            run('"{prompt}[X]" where X in options', prompt=prompts[0], options=list(task.given))["X"]
        ],
        "regex": lambda task, prompts: [
            run('"{prompt}[X]" where REGEX(X, pattern)', prompt=prompts[0], pattern=task.given)["X"]
        ],
        "scores": lambda task, prompts: [
            lq.score_sync(prompts[0], list(task.given), model=model, session=session, cache=cache).best
        ],
        "chat": lambda task, prompts: talk(lambda text: run(line, prompt=text)["X"], task, prompts[0]),
    }


def generating(folder: str, store: str) -> Ways:
    """transformers: `generate`, and options scored together by hand. It has no other conditions."""
    tokenizer, network = loaded(folder)

    @torch.inference_mode()
    def written(prompt: str, **options: Any) -> list[str]:
        ids = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
        kept = {"max_new_tokens": MAX_TOKENS, "do_sample": False, "pad_token_id": 0, **options}
        out = network.generate(**ids, **kept, tokenizer=tokenizer)
        return tokenizer.batch_decode(out[:, ids["input_ids"].shape[1] :], skip_special_tokens=True)

    def line(prompt: str) -> str:
        return written(prompt, stop_strings=["\n"], max_new_tokens=TURN_TOKENS)[0].rstrip("\n")

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

    def things(task: Task, prompts: tuple[str, ...]) -> list[str]:
        text, found = prompts[0], list[str]()
        for _ in range(THINGS):
            found.append(written(text, stop_strings=["\n"])[0].rstrip("\n"))
            text += found[-1] + "\n-"
        return found

    def samples(task: Task, prompts: tuple[str, ...]) -> list[str]:
        torch.manual_seed(1)
        options = {"do_sample": True, "temperature": 0.8, "num_return_sequences": SAMPLES, "stop_strings": ["\n"]}
        return [text.partition("\n")[0] for text in written(prompts[0], max_new_tokens=SAMPLE_TOKENS, **options)]

    def chosen(task: Task, prompts: tuple[str, ...]) -> list[str]:
        return [best(prompt, task.given) for prompt in prompts]

    return {
        "list": things,
        "samples": samples,
        "calls": lambda task, prompts: exercises(lambda text: written(text, stop_strings=["="])[0], prompts[0]),
        "chat": lambda task, prompts: talk(line, task, prompts[0]),
        "questions": lambda task, prompts: [line(prompt) for prompt in asked(task, prompts[0])],
        "json": lambda task, prompts: written(prompts[0]),
        "regex": lambda task, prompts: written(prompts[0], max_new_tokens=12),
        **dict.fromkeys(("choice", "scores", "labels"), chosen),
    }


def guidance(folder: str, store: str) -> Ways:
    import guidance as g

    tokenizer, network = loaded(folder)
    tokenizer.bos_token = None  # it would be put before every prompt
    model = g.models.Transformers(network, tokenizer, echo=False)

    def filled(text: str, grammar: Any) -> str:
        return str((model + text + grammar)["X"])

    def matching(text: str, pattern: str, temperature: float = 0.0) -> str:
        return filled(text, g.gen("X", regex=pattern, temperature=temperature, max_tokens=MAX_TOKENS))

    def line(text: str, temperature: float = 0.0, most: int = TURN_TOKENS) -> str:
        return filled(text, g.gen("X", stop="\n", max_tokens=most, temperature=temperature))

    def things(task: Task, prompts: tuple[str, ...]) -> list[str]:
        here = model + prompts[0]
        for name in "ABCD"[:THINGS]:
            here += g.gen(name, stop="\n", max_tokens=MAX_TOKENS, temperature=0.0) + "\n-" * (name != "D")
        return [here[name] for name in "ABCD"]

    def record(text: str, schema: dict[str, Any], temperature: float = 0.0) -> str:
        return filled(text, g.json(name="X", schema=schema, temperature=temperature, max_tokens=MAX_TOKENS))

    def chosen(task: Task, prompts: tuple[str, ...]) -> list[str]:
        return [filled(prompt, g.select(list(task.given), name="X")) for prompt in prompts]

    def values(task: Task, prompts: tuple[str, ...]) -> list[str]:
        ways: list[Callable[[], str]] = [
            lambda: filled(prompts[0], g.with_temperature(g.select(list(PLACES), name="X"), 1.0)),
            lambda: matching(prompts[0], TASKS["date"].given, 1.0),
            lambda: matching(prompts[0], SHORT, 1.0),
            lambda: record(prompts[0], SCHEMA, 1.0),
        ]
        return [way() for way in ways for _ in range(EACH)]

    return {
        "list": things,
        "values": values,
        "json": lambda task, prompts: [record(prompts[0], task.given)],
        "regex": lambda task, prompts: [matching(prompts[0], task.given)],
        "calls": lambda task, prompts: exercises(lambda text: matching(text, SUM), prompts[0]),
        "samples": lambda task, prompts: [line(prompts[0], 0.8, SAMPLE_TOKENS) for _ in range(SAMPLES)],
        "chat": lambda task, prompts: talk(line, task, prompts[0]),
        "questions": lambda task, prompts: [line(prompt) for prompt in asked(task, prompts[0])],
        **dict.fromkeys(("choice", "labels"), chosen),
    }


def outlines(folder: str, store: str) -> Ways:
    from typing import Literal

    import outlines as o

    tokenizer, network = loaded(folder)
    model = o.from_transformers(network, tokenizer)
    kept = {"max_new_tokens": MAX_TOKENS, "do_sample": False}
    drawn = kept | {"do_sample": True, "temperature": 1.0, "top_k": 0}

    def line(text: str, **options: Any) -> str:
        found = o.Generator(model)(text, **kept | options, stop_strings=["\n"], tokenizer=tokenizer)
        return str(found).partition("\n")[0]

    def things(task: Task, prompts: tuple[str, ...]) -> list[str]:
        text, found = prompts[0], list[str]()
        for _ in range(THINGS):
            found.append(line(text))
            text += found[-1] + "\n-"
        return found

    def chosen(task: Task, prompts: tuple[str, ...]) -> list[str]:
        generator = o.Generator(model, Literal[tuple(task.given)])
        return [generator(prompt, **kept) for prompt in prompts]

    def calls(task: Task, prompts: tuple[str, ...]) -> list[str]:
        generator = o.Generator(model, o.regex(SUM))
        return exercises(lambda text: generator(text, **kept), prompts[0])

    def samples(task: Task, prompts: tuple[str, ...]) -> list[str]:
        torch.manual_seed(1)
        options = {"do_sample": True, "temperature": 0.8, "max_new_tokens": SAMPLE_TOKENS}
        return [line(prompts[0], **options) for _ in range(SAMPLES)]

    def values(task: Task, prompts: tuple[str, ...]) -> list[str]:
        torch.manual_seed(1)
        kinds = (
            Literal[tuple(PLACES)],
            o.regex(TASKS["date"].given),
            o.regex(SHORT),
            o.json_schema(json.dumps(SCHEMA)),
        )
        return [
            generator(prompts[0], **drawn)
            for generator in (o.Generator(model, kind) for kind in kinds)
            for _ in range(EACH)
        ]

    return {
        "list": things,
        "calls": calls,
        "samples": samples,
        "values": values,
        "json": lambda task, prompts: [o.Generator(model, o.json_schema(json.dumps(task.given)))(prompts[0], **kept)],
        "regex": lambda task, prompts: [o.Generator(model, o.regex(task.given))(prompts[0], **kept)],
        "chat": lambda task, prompts: talk(lambda text: line(text, max_new_tokens=TURN_TOKENS), task, prompts[0]),
        "questions": lambda task, prompts: [
            line(prompt, max_new_tokens=TURN_TOKENS) for prompt in asked(task, prompts[0])
        ],
        **dict.fromkeys(("choice", "labels"), chosen),
    }


def xgrammar(folder: str, store: str) -> Ways:
    """xgrammar's masks in transformers' `generate`, as its documentation does it."""
    import xgrammar as x
    from xgrammar.contrib.hf import LogitsProcessor

    tokenizer, network = loaded(folder)
    compiler = x.GrammarCompiler(x.TokenizerInfo.from_huggingface(tokenizer, vocab_size=network.config.vocab_size))

    @torch.inference_mode()
    def written(prompt: str, grammar: Any, **options: Any) -> str:
        ids = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
        kept = {"max_new_tokens": MAX_TOKENS, "do_sample": False, "pad_token_id": 0, **options}
        out = network.generate(**ids, **kept, logits_processor=[LogitsProcessor(grammar)])
        return str(tokenizer.decode(out[0, ids["input_ids"].shape[1] :], skip_special_tokens=True))

    def options_of(texts: tuple[str, ...]) -> Any:
        return compiler.compile_grammar("root ::= " + " | ".join(json.dumps(text) for text in texts))

    def record(schema: dict[str, Any]) -> Any:
        return compiler.compile_json_schema(json.dumps(schema), any_whitespace=False)

    def line(prompt: str, **options: Any) -> str:
        return written(prompt, compiler.compile_regex(r"[^\n]+\n"), **options).rstrip("\n")

    def things(task: Task, prompts: tuple[str, ...]) -> list[str]:
        text, found = prompts[0], list[str]()
        for _ in range(THINGS):
            found.append(line(text))
            text += found[-1] + "\n-"
        return found

    def samples(task: Task, prompts: tuple[str, ...]) -> list[str]:
        torch.manual_seed(1)
        options = {"do_sample": True, "temperature": 0.8, "max_new_tokens": SAMPLE_TOKENS}
        return [line(prompts[0], **options) for _ in range(SAMPLES)]

    def chosen(task: Task, prompts: tuple[str, ...]) -> list[str]:
        grammar = options_of(task.given)
        return [written(prompt, grammar) for prompt in prompts]

    def values(task: Task, prompts: tuple[str, ...]) -> list[str]:
        torch.manual_seed(1)
        kinds = (
            options_of(PLACES),
            compiler.compile_regex(TASKS["date"].given),
            compiler.compile_regex(SHORT),
            record(SCHEMA),
        )
        return [written(prompts[0], kind, do_sample=True, top_k=0) for kind in kinds for _ in range(EACH)]

    return {
        "list": things,
        "samples": samples,
        "values": values,
        "json": lambda task, prompts: [written(prompts[0], record(task.given))],
        "regex": lambda task, prompts: [written(prompts[0], compiler.compile_regex(task.given))],
        "calls": lambda task, prompts: exercises(lambda text: written(text, compiler.compile_regex(SUM)), prompts[0]),
        "chat": lambda task, prompts: talk(lambda text: line(text, max_new_tokens=TURN_TOKENS), task, prompts[0]),
        "questions": lambda task, prompts: [
            line(prompt, max_new_tokens=TURN_TOKENS) for prompt in asked(task, prompts[0])
        ],
        **dict.fromkeys(("choice", "labels"), chosen),
    }


def lmql(folder: str, store: str) -> Ways:
    """LMQL with its own server of models in another process, whose passes and time count too."""
    import lmql as l

    model = l.model(f"local:{folder}", tokenizer=folder)

    def run(query: str, **inputs: Any) -> Any:
        return l.run_sync(query, model=model, max_len=4096, **inputs)[0].variables

    def line(text: str, most: int = TURN_TOKENS) -> str:
        found = run(
            f'argmax(chunksize=16)\n    "{{text}}[X]"\nwhere\n    STOPS_AT(X, "\\n") and len(TOKENS(X)) < {most}',
            text=text,
        )
        return str(found["X"]).rstrip("\n")

    def things(task: Task, prompts: tuple[str, ...]) -> list[str]:
        stops = " and ".join(f'STOPS_AT({name}, "\\n")' for name in "ABCD")
        found = run(f'argmax(chunksize=16)\n    "{{text}}[A]-[B]-[C]-[D]"\nwhere\n    {stops}', text=prompts[0])
        return [found[name].rstrip("\n") for name in "ABCD"]

    def chosen(task: Task, prompts: tuple[str, ...]) -> list[str]:
        query = 'argmax\n    "{text}[X]"\nwhere\n    X in set(options)'
        return [run(query, text=prompt, options=list(task.given))["X"] for prompt in prompts]

    def matching(text: str, pattern: str) -> str:
        return str(run(f'argmax\n    "{{text}}[X]"\nwhere\n    REGEX(X, {pattern!r})', text=text)["X"])

    return {
        "list": things,
        "regex": lambda task, prompts: [matching(prompts[0], task.given)],
        "calls": lambda task, prompts: exercises(lambda text: matching(text, SUM), prompts[0]),
        "chat": lambda task, prompts: talk(line, task, prompts[0]),
        "questions": lambda task, prompts: [line(prompt) for prompt in asked(task, prompts[0])],
        **dict.fromkeys(("choice", "labels"), chosen),
    }


def loaded(folder: str) -> tuple[Any, Any]:
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return PreTrainedTokenizerFast.from_pretrained(folder), network


TOOLS = {
    "lmql_lite": ours,
    "transformers": generating,
    "guidance": guidance,
    "outlines": outlines,
    "xgrammar": xgrammar,
    "lmql": lmql,
}


@contextmanager
def counted(run: dict[str, Any]) -> Iterator[None]:
    """Adds the passes, tokens and seconds of its block to `run`."""
    before = passes.value, tokens.value
    wall, cpu = time.perf_counter(), processor_seconds()
    yield
    run.update(cpu=processor_seconds() - cpu, wall=time.perf_counter() - wall)
    run.update(passes=passes.value - before[0], tokens=tokens.value - before[1])


def main(tool: str, name: str, folder: str, store: str, runs: str) -> None:
    torch.set_num_threads(1)
    count_passes()
    task, ways = TASKS[name], TOOLS[tool](folder, store)
    report: dict[str, Any] = {"version": version(tool.replace("_", "-"))}
    if task.kind not in ways:
        print(json.dumps({"cannot": "it has no such thing", **report}))
        return
    ways["choice"](TASKS["option"]._replace(given=("Yes", "No")), ("Warm up:",))
    report["runs"] = []
    for number in range(int(runs)):
        prompts = tuple(f"Note {number}.\n" * (number > 0) + prompt for prompt in task.prompts)
        run: dict[str, Any] = {}
        with counted(run):
            texts = ways[task.kind](task, prompts)
        report["runs"].append({**run, "broken": task.broken(texts), "count": len(texts), "texts": texts[:4]})
        if run["wall"] > LONG:
            break
    print(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
