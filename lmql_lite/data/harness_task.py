"""Tasks of lm-evaluation-harness as queries: plain `multiple_choice` and `generate_until` tasks over local files.

Whatever needs the harness itself (Python, drawn examples, filters, data sets of a hub) is refused, so that a score
never belongs to another task. Few-shot examples are the first ones of their split
(`fewshot_config: {sampler: first_n}`).
"""

from __future__ import annotations

import json
from ast import literal_eval
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lmql_lite.data.data_file import FileRow, is_table, read_rows
from lmql_lite.errors import InputError, did_you_mean

FEWSHOT_DELIMITER = "\n\n"
FORMATS = ("json", "csv", "parquet", "arrow")
METRICS = {"acc": "acc", "acc_norm": "acc_norm", "acc_bytes": "acc_bytes", "exact_match": "exact"}
KNOWN = frozenset((
    "task", "task_alias", "tag", "group", "metadata", "dataset_path", "dataset_name", "dataset_kwargs", "output_type",
    "training_split", "validation_split", "test_split", "fewshot_split", "num_fewshot", "description", "doc_to_text",
    "doc_to_target", "doc_to_choice", "target_delimiter", "generation_kwargs", "metric_list", "repeats",
    "should_decontaminate", "doc_to_decontamination_query", "fewshot_delimiter", "fewshot_config",
))  # fmt: skip
KNOWN_OF_SHOTS = frozenset((
    "sampler", "split", "samples", "doc_to_text", "doc_to_choice", "doc_to_target", "fewshot_delimiter",
    "target_delimiter",
))  # fmt: skip
_TEMPLATES = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)


@dataclass(frozen=True, slots=True)
class FewShots:
    """Examples before a prompt: the first `number` rows of a split. With `excludes`, a row is never among its own
    examples. `examples` are rows and their texts, as many as any row needs.
    """

    number: int = 0
    excludes: bool = False
    examples: tuple[tuple[Mapping[str, Any], str], ...] = ()

    def before(self, row: Mapping[str, Any]) -> str:
        """Text of the examples of a row. Raises ValueError where there are too few."""
        found = [text for example, text in self.examples if not (self.excludes and example == row)][: self.number]
        if len(found) < self.number:
            raise ValueError(f"{self.number} examples are needed, and its split has {len(found)} others")
        return "".join(found)


@dataclass(frozen=True, slots=True)
class HarnessTask:
    """A task as a query: its source, its data, the metrics, and `prepare`, which adds the columns that it reads."""

    source: str
    data: Path
    metrics: tuple[str, ...]
    max_tokens: int | None
    fields: Mapping[str, Any]
    shots: FewShots = FewShots()

    def prepare(self, row: FileRow) -> FileRow:
        """The row with `task_prompt` and `task_target`; of a multiple choice also with `task_choices`, and
        `task_options`: those with the delimiter, which are scored."""
        if row.problem:
            return row
        try:
            return replace(row, values={**row.values, **self._columns(row.values)})
        except (TemplateError, ValueError, TypeError, LookupError, SyntaxError) as error:
            return replace(row, problem=f"the task cannot read this row: {error}")

    def _columns(self, row: Mapping[str, Any]) -> dict[str, Any]:
        description = str(_filled(self.fields.get("description") or "", row))
        prompt = description + self.shots.before(row) + str(_filled(self.fields["doc_to_text"], row))
        target = _filled(self.fields["doc_to_target"], row)
        if self.fields["output_type"] == "generate_until":
            return {"task_prompt": prompt, "task_target": target}
        choices = _choices(self.fields["doc_to_choice"], row)
        if isinstance(target, str):
            is_index = _is_index(target, self.fields["doc_to_target"], row, choices, is_table(self.data))
            target = int(target) if is_index else choices.index(target)
        delimiter = self.fields.get("target_delimiter", " ")
        return {
            "task_prompt": prompt,
            "task_choices": choices,
            "task_options": [delimiter + each for each in choices],
            "task_target": int(target),
        }


def harness_task(path: Path) -> HarnessTask:
    """Reads a task. Raises InputError with what it needs of the harness."""
    fields = _fields(path)
    kind = fields.get("output_type")
    if kind not in ("multiple_choice", "generate_until"):
        hint = "multiple_choice and generate_until tasks are run"
        raise InputError(f"{path}: output_type {kind!r} needs lm-evaluation-harness", hint=hint)
    for name in ("doc_to_text", "doc_to_target", *(("doc_to_choice",) if kind == "multiple_choice" else ())):
        if name not in fields:
            raise InputError(f"{path} has no {name}")
    listed = fields.get("metric_list") or [{"metric": "acc" if kind == "multiple_choice" else "exact_match"}]
    for each in listed:
        others = set(each) - {"metric", "aggregation", "higher_is_better"}
        if each.get("metric") not in METRICS or others or each.get("aggregation", "mean") != "mean":
            hint = f"metrics are {', '.join(METRICS)}, without options; a score of your own is -m FILE.py:FUNCTION"
            raise InputError(f"{path}: the metric {json.dumps(each)} needs lm-evaluation-harness", hint=hint)
    metrics = tuple(METRICS[each["metric"]] for each in listed)
    split = fields.get("test_split") or fields.get("validation_split") or "train"
    data, shots = _file_of(path, fields, split), _few_shots(path, fields)
    if kind == "multiple_choice":
        return HarnessTask(
            '"{task_prompt}"\nreturn await context.score(task_options)\n', data, metrics, None, fields, shots
        )
    options = {"max_gen_toks": 256, **fields.get("generation_kwargs", {})}
    stops, most = options.pop("until", ["\n\n"]), options.pop("max_gen_toks")
    is_greedy = not options.pop("do_sample", False) and not options.pop("temperature", 0)
    if options or not is_greedy:
        raise InputError(f"{path}: generation_kwargs may have until and max_gen_toks; these are {sorted(options)}")
    stops = [stops] if isinstance(stops, str) else stops
    where = " and ".join(f"STOPS_BEFORE(ANSWER, {stop!r})" for stop in stops)
    source = f'argmax\n    "{{task_prompt}}[ANSWER]"\nwhere\n    {where}\n' if stops else '"{task_prompt}[ANSWER]"\n'
    return HarnessTask(source, data, metrics, most, fields, shots)


def _fields(path: Path) -> dict[str, Any]:
    try:
        import yaml
    except ImportError:
        raise InputError("--from lm-eval needs PyYAML", hint="pip install 'lmql-lite[data]'") from None
    try:
        found = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        what = "; ".join(str(error).split("\n"))
        raise InputError(f"{path} cannot be read without lm-evaluation-harness: {what}") from None
    if not isinstance(found, dict):
        raise InputError(f"{path} is not a task of lm-evaluation-harness")
    for name in found:
        if name not in KNOWN:
            hint = did_you_mean(str(name), KNOWN)
            raise InputError(f"{path}: {name!r} needs lm-evaluation-harness", hint=hint)
    return found


def _file_of(path: Path, fields: Mapping[str, Any], split: str) -> Path:
    """The file of a split; paths are relative to the working folder, as the harness has them."""
    if fields.get("dataset_path") not in FORMATS:
        hint = f"dataset_path is one of {', '.join(FORMATS)}, with dataset_kwargs: {{data_files: ...}}"
        raise InputError(f"{path}: the data set {fields.get('dataset_path')!r} is not a local file", hint=hint)
    files = (fields.get("dataset_kwargs") or {}).get("data_files")
    found = files.get(split) if isinstance(files, dict) else files
    if isinstance(found, list) and len(found) == 1:
        found = found[0]
    if not isinstance(found, str):
        raise InputError(f"{path}: dataset_kwargs names no file for the split {split!r}")
    return next((each for each in (Path(found), path.parent / found) if each.exists()), Path(found))


def _filled(field: Any, row: Mapping[str, Any]) -> Any:
    """A field of a task for a row: a column by its name, else a template."""
    if isinstance(field, str):
        return row[field] if field in row else _TEMPLATES.from_string(field).render(**row)
    return field


def _is_index(target: str, field: Any, row: Mapping[str, Any], choices: Sequence[str], is_of_table: bool) -> bool:
    """True for a text that is an index of choices. The harness reads a number as one, unless a column of its own has it
    as a text; a table has numbers for cells that are spelled like them."""
    is_text = field in row and not is_of_table and target in choices
    return target.strip().isdigit() and not is_text


def _choices(field: Any, row: Mapping[str, Any]) -> list[str]:
    found = _filled(field, row)
    if isinstance(found, str):
        found = literal_eval(found)
    return [str(each) for each in (found.values() if isinstance(found, dict) else found)]


def _few_shots(path: Path, fields: Mapping[str, Any]) -> FewShots:
    """Examples of a task, as `ConfigurableTask.fewshot_context` of the harness builds them. Raises InputError."""
    number, own = fields.get("num_fewshot") or 0, fields.get("fewshot_config") or {}
    if not isinstance(number, int) or not isinstance(own, dict):
        raise InputError(f"{path}: num_fewshot is a number, and fewshot_config an object")
    for name in own:
        if name not in KNOWN_OF_SHOTS:
            raise InputError(f"{path}: fewshot_config.{name} needs lm-evaluation-harness")
    if not number:
        return FewShots()
    if own.get("sampler", "default") != "first_n":
        hint = "fewshot_config: {sampler: first_n} takes the first ones"
        raise InputError(f"{path}: only lm-evaluation-harness can draw few-shot examples", hint=hint)
    style = {**fields, **own}
    split = own.get("split", fields.get("fewshot_split"))
    samples, is_of_table = own.get("samples") if split is None else None, False
    if samples is None:
        named = (split, *(fields.get(f"{each}_split") for each in ("training", "validation", "test")))
        file = _file_of(path, fields, next((each for each in named if each is not None), "train"))
        samples, is_of_table = (row.values for row in read_rows(file, "")), is_table(file)
    elif not isinstance(samples, list):
        raise InputError(f"{path}: fewshot_config.samples is a list of rows")
    excludes = split == fields.get("test_split")
    found: list[Mapping[str, Any]] = []
    distinct: list[Mapping[str, Any]] = []
    for row in samples:
        found.append(row)
        if row not in distinct:
            distinct.append(row)
        if len(distinct) > number if excludes else len(found) == number:
            break
    if len(found) < number:
        raise InputError(f"{path}: num_fewshot is {number}, and there are {len(found)} examples")
    try:
        return FewShots(number, excludes, tuple((row, _shot(style, row, is_of_table)) for row in found))
    except (TemplateError, ValueError, TypeError, LookupError, SyntaxError) as error:
        raise InputError(f"{path}: an example cannot be read: {error}") from None


def _shot(style: Mapping[str, Any], row: Mapping[str, Any], is_of_table: bool) -> str:
    """One example: question, delimiter, answer, delimiter."""
    question, answer = str(_filled(style["doc_to_text"], row)), _filled(style["doc_to_target"], row)
    choices = None if style.get("doc_to_choice") is None else _choices(style["doc_to_choice"], row)
    if choices and isinstance(answer, str) and _is_index(answer, style["doc_to_target"], row, choices, is_of_table):
        answer = int(answer)
    if isinstance(answer, str) and answer[:1] == "[" and answer[-1:] == "]":
        answer = literal_eval(answer)
    if choices and isinstance(answer, int):
        answer = choices[answer]
    elif isinstance(answer, list):
        answer = answer[0]
    if answer is None or answer == "":
        return question
    return f"{question}{style.get('target_delimiter', ' ')}{answer}{style.get('fewshot_delimiter', FEWSHOT_DELIMITER)}"
