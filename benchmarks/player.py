"""One task, played by one tool in this process: `PYTHON player.py TOOL TASK FOLDER STORE RUNS`, with the tool's Python.

Prints one line of JSON: processor seconds from the start to the first answer, a short one; for each run forward passes,
tokens fed, processor and wall seconds, and the number of texts that broke their condition. A pass is a call of the
network's `LlamaModel.forward`, whoever makes it, in this process or one that it started (in vLLM, a step of its
scheduler); tokens fed are its rows times columns. Each run after the first has another first line, so that no run has
met the prompt of another. FOLDER has the model; files for later processes may be left in the folder STORE.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
from tasks import CALLS, EACH, PLACES, SAMPLES, SCHEMA, SHORT, SUM, TASKS, THINGS, Task
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedTokenizerFast
from transformers.models.llama.modeling_llama import LlamaModel

LONG = 30
"""Seconds of wall time of a run after which there is no second one."""
MAX_TOKENS = 60
TURN_TOKENS = 20
SAMPLE_TOKENS = 24
LINE = r"[^\n]+\n"
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


Written = Callable[[Sequence[str], int, float], list[str]]
"""Writes a text after each prompt: prompts, most tokens of a text, temperature (0: greedy)."""


def one_by_one(write: Callable[[str, int, float], str]) -> Written:
    """For a tool that takes one prompt at a time."""
    return lambda prompts, limit, temperature: [write(prompt, limit, temperature) for prompt in prompts]


def writing(
    line: Written,
    regex: Callable[[str], Written] | None = None,
    options: Callable[[tuple[str, ...]], Written] | None = None,
    record: Callable[[dict[str, Any]], Written] | None = None,
) -> Ways:
    """The tasks, for a tool that writes a text after a prompt: a line, or a text that meets a condition; None for
    conditions that it does not have."""

    def greedy(write: Written, prompts: Sequence[str]) -> list[str]:
        return write(prompts, MAX_TOKENS, 0.0)

    def things(task: Task, prompts: tuple[str, ...]) -> list[str]:
        text, found = prompts[0], list[str]()
        for _ in range(THINGS):
            found += greedy(line, [text])
            text += found[-1] + "\n-"
        return found

    def samples(task: Task, prompts: tuple[str, ...]) -> list[str]:
        torch.manual_seed(1)
        return line([prompts[0]] * SAMPLES, SAMPLE_TOKENS, 0.8)

    def chat(task: Task, prompts: tuple[str, ...]) -> list[str]:
        prompt, lines = prompts[0], list[str]()
        for turn in task.given:
            prompt += f"User: {turn}\nAssistant:"
            lines += line([prompt], TURN_TOKENS, 0.0)
            prompt += lines[-1] + "\n"
        return lines

    ways: Ways = {"list": things, "samples": samples, "chat": chat}
    ways["questions"] = lambda task, prompts: line(asked(task, prompts[0]), TURN_TOKENS, 0.0)
    if regex is not None:
        matching = regex
        ways["regex"] = lambda task, prompts: greedy(matching(task.given), prompts)
        ways["calls"] = lambda task, prompts: exercises(partial(greedy, matching(SUM)), prompts[0])
    if options is not None:
        choosing = options
        ways["choice"] = ways["labels"] = lambda task, prompts: greedy(choosing(task.given), prompts)
    if record is not None:
        recording = record
        ways["json"] = lambda task, prompts: greedy(recording(task.given), prompts)
    if regex is not None and options is not None and record is not None:
        kinds = lambda: (choosing(PLACES), matching(TASKS["date"].given), matching(SHORT), recording(SCHEMA))  # noqa: E731

        def values(task: Task, prompts: tuple[str, ...]) -> list[str]:
            torch.manual_seed(1)
            return [text for write in kinds() for text in write([prompts[0]] * EACH, MAX_TOKENS, 1.0)]

        ways["values"] = values
    return ways


def exercises(written: Callable[[list[str]], list[str]], prompt: str) -> list[str]:
    """Plays `calls` for a tool that writes one exercise after a text."""
    steps = list[str]()
    for number in range(1, CALLS + 1):
        steps += written([prompt + f"{number}. "])
        prompt += f"{number}. {steps[-1]}{value_of(steps[-1])}\n"
    return steps


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
        "chat": writing(one_by_one(lambda text, limit, heat: run(line, prompt=text)["X"]))["chat"],
    }


def generating(folder: str, store: str) -> Ways:
    """transformers: `generate`, and options scored together by hand. It has no other conditions."""
    tokenizer, network = loaded(folder)

    def line(prompts: Sequence[str], limit: int, temperature: float) -> list[str]:
        copies = len(prompts) if temperature else 1  # the five samples have one prompt
        options = {"max_new_tokens": limit, "stop_strings": ["\n"], "num_return_sequences": copies}
        found = [
            text
            for prompt in (prompts[:1] if temperature else prompts)
            for text in generated(network, tokenizer, prompt, temperature, **options)
        ]
        return [text.partition("\n")[0] for text in found]

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

    def until(stop: str) -> Callable[[str], str]:
        options = {"max_new_tokens": MAX_TOKENS, "stop_strings": [stop]}
        return lambda text: generated(network, tokenizer, text, **options)[0]

    def chosen(task: Task, prompts: tuple[str, ...]) -> list[str]:
        return [best(prompt, task.given) for prompt in prompts]

    return {
        **writing(line),
        "calls": lambda task, prompts: exercises(until("="), prompts[0]),
        "json": lambda task, prompts: generated(network, tokenizer, prompts[0], max_new_tokens=MAX_TOKENS),
        "regex": lambda task, prompts: generated(network, tokenizer, prompts[0], max_new_tokens=12),
        **dict.fromkeys(("choice", "scores", "labels"), chosen),
    }


def guidance(folder: str, store: str) -> Ways:
    import guidance as g

    tokenizer, network = loaded(folder)
    tokenizer.bos_token = None  # it would be put before every prompt
    model = g.models.Transformers(network, tokenizer, echo=False)

    def filled(grammar: Callable[[int, float], Any]) -> Written:
        return one_by_one(lambda text, limit, temperature: str((model + text + grammar(limit, temperature))["X"]))

    def things(task: Task, prompts: tuple[str, ...]) -> list[str]:
        here = model + prompts[0]
        for name in "ABCD"[:THINGS]:
            here += g.gen(name, stop="\n", max_tokens=MAX_TOKENS, temperature=0.0) + "\n-" * (name != "D")
        return [here[name] for name in "ABCD"]

    return {
        **writing(
            filled(lambda limit, heat: g.gen("X", stop="\n", max_tokens=limit, temperature=heat)),
            lambda pattern: filled(lambda limit, heat: g.gen("X", regex=pattern, max_tokens=limit, temperature=heat)),
            lambda texts: filled(lambda limit, heat: g.with_temperature(g.select(list(texts), name="X"), heat)),
            lambda schema: filled(lambda limit, heat: g.json("X", schema=schema, max_tokens=limit, temperature=heat)),
        ),
        "list": things,
    }


def outlines(folder: str, store: str) -> Ways:
    from typing import Literal

    import outlines as o

    tokenizer, network = loaded(folder)
    model = o.from_transformers(network, tokenizer)

    def writer(kind: Any = None, **options: Any) -> Written:
        generator = o.Generator(model, kind) if kind else o.Generator(model)
        return one_by_one(
            lambda prompt, limit, heat: generator(prompt, max_new_tokens=limit, **sampling(heat), **options)
        )

    def line(prompts: Sequence[str], limit: int, temperature: float) -> list[str]:
        texts = writer(stop_strings=["\n"], tokenizer=tokenizer)(prompts, limit, temperature)
        return [str(text).partition("\n")[0] for text in texts]

    return writing(
        line,
        lambda pattern: writer(o.regex(pattern)),
        lambda texts: writer(Literal[tuple(texts)]),
        lambda schema: writer(o.json_schema(json.dumps(schema))),
    )


def xgrammar(folder: str, store: str) -> Ways:
    """xgrammar's masks in transformers' `generate`, as its documentation does it."""
    import xgrammar as x
    from xgrammar.contrib.hf import LogitsProcessor

    tokenizer, network = loaded(folder)
    compiler = x.GrammarCompiler(x.TokenizerInfo.from_huggingface(tokenizer, vocab_size=network.config.vocab_size))

    def writer(grammar: Any) -> Written:
        def written(prompt: str, limit: int, temperature: float) -> str:
            options = {"max_new_tokens": limit, "logits_processor": [LogitsProcessor(grammar)]}
            return generated(network, tokenizer, prompt, temperature, **options)[0]

        return one_by_one(written)

    return writing(
        lines(writer(compiler.compile_regex(LINE))),
        lambda pattern: writer(compiler.compile_regex(pattern)),
        lambda texts: writer(compiler.compile_grammar(f"root ::= {alternatives(texts)}")),
        lambda schema: writer(compiler.compile_json_schema(json.dumps(schema), any_whitespace=False)),
    )


def llguidance(folder: str, store: str) -> Ways:
    """llguidance's masks and forced tokens in a loop over transformers, as its documentation does it."""
    import llguidance as l
    import llguidance.hf
    import llguidance.numpy as masks

    tokenizer, network = loaded(folder)
    size = network.config.vocab_size
    known = llguidance.hf.from_tokenizer(tokenizer, n_vocab=size)
    bits = masks.allocate_token_bitmask(1, size)

    def writer(grammar: str) -> Written:
        @torch.inference_mode()
        def written(prompt: str, limit: int, temperature: float) -> str:
            matcher = l.LLMatcher(known, grammar)
            cache, feed, said = None, tokenizer(prompt)["input_ids"], list[int]()
            while len(said) < limit and not matcher.is_stopped():
                out = network(torch.tensor([feed]), past_key_values=cache, use_cache=True, logits_to_keep=1)
                cache, row = out.past_key_values, out.logits[0, -1]
                masks.fill_next_token_bitmask(matcher, bits)
                allowed = torch.from_numpy(np.unpackbits(bits.view(np.uint8), bitorder="little")[:size])
                row = row.masked_fill(allowed == 0, -torch.inf)
                token = int(torch.multinomial((row / temperature).softmax(-1), 1) if temperature else row.argmax())
                if not matcher.consume_token(token):
                    raise ValueError(matcher.get_error())
                forced = matcher.compute_ff_tokens()
                matcher.consume_tokens(forced)
                feed = [token, *forced]
                said += feed
            return str(tokenizer.decode(said, skip_special_tokens=True))

        return one_by_one(written)

    def regex(pattern: str) -> Written:
        return writer(l.LLMatcher.grammar_from_regex(pattern))

    return writing(
        lines(regex(LINE)),
        regex,
        lambda texts: writer(l.LLMatcher.grammar_from_lark(f"start: {alternatives(texts)}")),
        lambda schema: writer(
            l.LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides={"whitespace_flexible": False})
        ),
    )


def vllm(folder: str, store: str) -> Ways:
    """vLLM on the processor, in this process: all prompts of a task at once. It plans its passes itself."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "2"}
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import StructuredOutputsParams
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    execute = GPUModelRunner.execute_model

    def counted(self: Any, plan: Any, *rest: Any, **named: Any) -> Any:
        with passes.get_lock():
            passes.value += plan.total_num_scheduled_tokens > 0
            tokens.value += plan.total_num_scheduled_tokens
        return execute(self, plan, *rest, **named)

    GPUModelRunner.execute_model = counted
    plain = {"disable_any_whitespace": True, "backend": "xgrammar"}
    model = LLM(folder, dtype="float32", max_model_len=4096, enforce_eager=True, structured_outputs_config=plain)

    def writer(condition: dict[str, Any], **options: Any) -> Written:
        def written(prompts: Sequence[str], limit: int, temperature: float) -> list[str]:
            held = StructuredOutputsParams(**condition) if condition else None
            wanted = [
                SamplingParams(
                    max_tokens=limit, temperature=temperature, seed=number, structured_outputs=held, **options
                )
                for number, _ in enumerate(prompts)
            ]
            return [str(each.outputs[0].text) for each in model.generate(list(prompts), wanted, use_tqdm=False)]

        return written

    return writing(
        writer({}, stop=["\n"]),
        lambda pattern: writer({"regex": pattern}),
        lambda texts: writer({"choice": list(texts)}),
        lambda schema: writer({"json": schema}),
    )


def lmql(folder: str, store: str) -> Ways:
    """LMQL with its own server of models in another process, whose passes and time count too."""
    import lmql as l

    model = l.model(f"local:{folder}", tokenizer=folder)

    def run(query: str, **inputs: Any) -> Any:
        return l.run_sync(query, model=model, max_len=4096, **inputs)[0].variables

    def line(text: str, limit: int, temperature: float) -> str:
        head = f"sample(temperature={temperature}, chunksize=16)" if temperature else "argmax(chunksize=16)"
        found = run(
            f'{head}\n    "{{text}}[X]"\nwhere\n    STOPS_AT(X, "\\n") and len(TOKENS(X)) < {limit}',
            text=text,
        )
        return str(found["X"]).rstrip("\n")

    def things(task: Task, prompts: tuple[str, ...]) -> list[str]:
        stops = " and ".join(f'STOPS_AT({name}, "\\n")' for name in "ABCD")
        found = run(f'argmax(chunksize=16)\n    "{{text}}[A]-[B]-[C]-[D]"\nwhere\n    {stops}', text=prompts[0])
        return [found[name].rstrip("\n") for name in "ABCD"]

    def writer(condition: str, **inputs: Any) -> Written:
        query = f'argmax\n    "{{text}}[X]"\nwhere\n    {condition}'
        return one_by_one(lambda text, limit, heat: str(run(query, text=text, **inputs)["X"]))

    return {
        **writing(
            one_by_one(line),
            lambda pattern: writer(f"REGEX(X, {pattern!r})"),
            lambda texts: writer("X in set(options)", options=list(texts)),
        ),
        "list": things,
    }


def lmcache(folder: str, store: str) -> Ways:
    """LMCache's engine over transformers, with chunks of 256 tokens in files. Its own connectors belong to servers on
    accelerators, so this one copies the keys and values of transformers."""
    from lmcache.utils import mock_up_broadcast_fn, mock_up_broadcast_object_fn
    from lmcache.v1.cache_engine import LMCacheEngineBuilder
    from lmcache.v1.config import LMCacheEngineConfig
    from lmcache.v1.gpu_connector.gpu_connectors import GPUConnectorInterface
    from lmcache.v1.metadata import LMCacheMetadata

    tokenizer, network = loaded(folder)
    layers, heads, size = (
        getattr(network.config, name) for name in ("num_hidden_layers", "num_key_value_heads", "head_dim")
    )

    class Connector(GPUConnectorInterface):
        """Copies between memory objects and `held`, a tensor of shape (2, layers, tokens, heads * size)."""

        def get_shape(self, count: int) -> torch.Size:
            return torch.Size((2, layers, count, heads * size))

        def from_gpu(self, memory: Any, start: int, end: int, *, held: Any, **_: Any) -> None:
            memory.tensor.copy_(held[:, :, start:end])

        def to_gpu(self, memory: Any, start: int, end: int, *, held: Any, **_: Any) -> None:
            held[:, :, start:end] = memory.tensor

        def batched_from_gpu(self, memories: Any, starts: list[int], ends: list[int], **named: Any) -> None:
            for memory, start, end in zip(memories, starts, ends, strict=True):
                self.from_gpu(memory, start, end, **named)

        def batched_to_gpu(self, memories: Any, starts: list[int], ends: list[int], **named: Any) -> None:
            for memory, start, end in zip(memories, starts, ends, strict=True):
                self.to_gpu(memory, start, end, **named)

    engine = LMCacheEngineBuilder.get_or_create(
        "benchmark",
        LMCacheEngineConfig.from_defaults(
            chunk_size=256, local_cpu=True, max_local_cpu_size=1.0, remote_url=f"fs://localhost:0/{store}/lmcache"
        ),
        LMCacheMetadata(folder, 1, 1, 0, 0, torch.float32, (layers, 2, 256, heads, size)),
        Connector(),
        mock_up_broadcast_fn,
        mock_up_broadcast_object_fn,
    )
    engine.post_init()

    @torch.inference_mode()
    def line(prompt: str, limit: int, temperature: float) -> str:
        ids = tokenizer(prompt)["input_ids"]
        held = torch.zeros(engine.gpu_connector.get_shape(len(ids)))
        known = min(int(engine.retrieve(ids, held=held).sum()), len(ids) - 1)
        parts = held[:, :, :known].reshape(2, layers, 1, known, heads, size).transpose(3, 4)
        cache = DynamicCache(list(zip(*parts, strict=True)) if known else None)
        feed, said = ids[known:], list[int]()
        while len(said) < limit and "\n" not in tokenizer.decode(said):
            out = network(torch.tensor([feed]), past_key_values=cache, use_cache=True, logits_to_keep=1)
            feed = [int(out.logits[0, -1].argmax())]
            if not said:
                held = torch.stack(
                    [torch.stack([getattr(layer, name) for layer in cache.layers]) for name in ("keys", "values")]
                )
                engine.store(ids, held=held[:, :, 0].transpose(2, 3).flatten(3))
            said += feed
        return str(tokenizer.decode(said)).partition("\n")[0]

    return {"questions": writing(one_by_one(line))["questions"]}


def lmms_eval(folder: str, store: str) -> Ways:
    """lmms-eval's cache of whole answers, over transformers: of the tasks, labels only."""
    from lmms_eval.api.instance import Instance
    from lmms_eval.caching.response_cache import ResponseCache

    class Labelling:
        """A model as lmms-eval calls it."""

        def __init__(self, task: Task) -> None:
            self.task, self.played = task, generating(folder, store)["labels"]

        def generate_until(self, requests: Sequence[Any]) -> list[str]:
            return self.played(self.task, tuple(request.args[0] for request in requests))

    def labels(task: Task, prompts: tuple[str, ...]) -> list[str]:
        cache = ResponseCache.create(f"{store}/answers", model=folder)
        greedy = {"temperature": 0, "do_sample": False, "until": ["\n"]}
        about = {"task": "labels", "repeats": 1}
        requests = [
            Instance("generate_until", (prompt, greedy), 0, {**about, "doc_id": at})
            for at, prompt in enumerate(prompts)
        ]
        texts = cache.execute(Labelling(task), "generate_until", requests)
        cache.finalize(success=True)
        return list(texts)

    return {"labels": labels}


def loaded(folder: str) -> tuple[Any, Any]:
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return PreTrainedTokenizerFast.from_pretrained(folder), network


@torch.inference_mode()
def generated(network: Any, tokenizer: Any, prompt: str, temperature: float = 0.0, **options: Any) -> list[str]:
    """Texts of transformers' `generate`, without the prompt."""
    ids = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    out = network.generate(**ids, **sampling(temperature), **options, pad_token_id=0, tokenizer=tokenizer)
    return list(tokenizer.batch_decode(out[:, ids["input_ids"].shape[1] :], skip_special_tokens=True))


def sampling(temperature: float) -> dict[str, Any]:
    """Options of `generate`."""
    return {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}


def lines(write: Written) -> Written:
    """Lines without the newline that ends them."""
    return lambda prompts, limit, temperature: [text.rstrip("\n") for text in write(prompts, limit, temperature)]


def alternatives(texts: Sequence[str]) -> str:
    return " | ".join(json.dumps(text) for text in texts)


TOOLS = {
    "lmql_lite": ours,
    "transformers": generating,
    "guidance": guidance,
    "outlines": outlines,
    "xgrammar": xgrammar,
    "llguidance": llguidance,
    "vllm": vllm,
    "lmql": lmql,
    "lmcache": lmcache,
    "lmms_eval": lmms_eval,
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
    if "choice" in ways:
        ways["choice"](TASKS["option"]._replace(given=("Yes", "No")), ("Warm up:",))
        report["started"] = processor_seconds()
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
