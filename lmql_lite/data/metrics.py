"""Metrics of `lq eval`: each computes a number from the record of one attempt. A record has the row's columns, the
target and the answer, so scoring asks no model."""

from __future__ import annotations

import inspect
import json
import math
import re
import string
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from lmql_lite.errors import InputError, did_you_mean

Record = Mapping[str, Any]
Score = tuple[float, float]
"""A score and its weight: 1, or the units over which a perplexity is a mean."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric by the name that the user gave it. `version` changes when its definition does.

    `is_log`: scores are mean negative log-likelihoods, and reports show their exponential. `needs_target`: a row
    without target has no score.
    """

    name: str
    measure: Callable[[Record], Any]
    version: str = ""
    is_log: bool = False
    needs_target: bool = True

    async def score(self, record: Record) -> Score:
        """Score of a record. Raises ValueError with a sentence where there is none."""
        if self.needs_target and record.get("target") is None:
            raise ValueError("the row has no target")
        found = self.measure(record)
        if inspect.isawaitable(found):
            found = await found
        value, weight = found if isinstance(found, tuple) else (found, 1.0)
        if isinstance(value, str) or value is None:
            raise ValueError(f"{self.name} returned {value!r}, and a score is a number or a bool")
        value = float(value)
        if not math.isfinite(value):
            raise ValueError(f"{self.name} returned {value}, which is not a score")
        return value, float(weight)


def answer_of(record: Record) -> Any:
    """The answer of an attempt: what the query returned, else its last hole."""
    if record.get("value") is not None:
        return record["value"]
    holes = [value for name, value in record.get("variables", {}).items() if not name.startswith("P(")]
    return holes[-1] if holes else None


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _targets(record: Record) -> list[Any]:
    target = record["target"]
    return target if isinstance(target, list) else [target]


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def same(value: Any, target: Any) -> bool:
    """Equality of an answer and a target: as text without the white space around it, as numbers where the answer is
    one."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _number(target) == value
    return _text(value) == _text(target)


def exact(record: Record) -> bool:
    target, answer = record["target"], answer_of(record)
    return same(answer, target) or (isinstance(target, list) and any(same(answer, each) for each in target))


def contains(record: Record) -> bool:
    answer = _text(answer_of(record))
    return any(_text(each) in answer for each in _targets(record))


def _words(text: str) -> list[str]:
    plain = "".join(" " if one in string.punctuation else one for one in text.casefold())
    return [word for word in plain.split() if word not in ("a", "an", "the")]


def f1(record: Record) -> float:
    """Overlap of words, as SQuAD counts it; of several targets the best."""
    found = _words(_text(answer_of(record)))

    def overlap(target: Any) -> float:
        wanted = _words(_text(target))
        if not found or not wanted:
            return float(found == wanted)
        common = sum((Counter(found) & Counter(wanted)).values())
        return 2 * common / (len(found) + len(wanted))

    return max(map(overlap, _targets(record)))


def choice(record: Record) -> bool:
    """Equality without case and punctuation; a number as target is an index into the row's `choices`."""

    def bare(value: Any) -> str:
        return _text(value).casefold().strip(string.punctuation + string.whitespace)

    target, choices = record["target"], record.get("columns", {}).get("choices")
    if isinstance(target, int) and isinstance(choices, list) and 0 <= target < len(choices):
        target = choices[target]
    return any(bare(answer_of(record)) == bare(each) for each in (target if isinstance(target, list) else [target]))


def json_equal(record: Record) -> bool:
    """Equality as JSON: keys in any order, 1 equals 1.0, true is not a number."""

    def read(value: Any) -> Any:
        return json.loads(value) if isinstance(value, str) else value

    def typed(value: Any) -> Any:
        if isinstance(value, bool):
            return ("bool", value)
        if isinstance(value, dict):
            return {key: typed(each) for key, each in value.items()}
        return [typed(each) for each in value] if isinstance(value, list) else value

    try:
        return bool(typed(read(answer_of(record))) == typed(read(record["target"])))
    except ValueError:
        return False


def _likelihoods(record: Record) -> tuple[list[Any], list[float]]:
    """Options and their log-likelihoods: of a query that returns `context.score(...)`, else of its distribution."""
    value = record.get("value")
    if isinstance(value, dict) and {"options", "logprobs"} <= value.keys():
        return value["options"], [float(each) for each in value["logprobs"]]
    for name, pairs in record.get("variables", {}).items():
        if name.startswith("P("):
            logs = [math.log(float(share)) if float(share) > 0 else -math.inf for _, share in pairs]
            return [option for option, _ in pairs], logs
    raise ValueError("the query has no log-likelihoods: give it a distribution, or return await context.score(options)")


def _best_of(length: Callable[[str], int] | None) -> Callable[[Record], bool]:
    """Metric: the option with the highest log-likelihood, divided by its length where one is given, is the target."""

    def measure(record: Record) -> bool:
        options, logprobs = _likelihoods(record)
        texts = [_text(option) for option in options]
        columns = record.get("columns", {})
        named = columns.get("task_choices", columns.get("choices"))  # options without the space before them
        counted = named if isinstance(named, list) and len(named) == len(options) else options
        sizes = [1 if length is None else max(length(str(option)), 1) for option in counted]
        if length is not None and not isinstance(record.get("value"), dict):
            raise ValueError("a distribution has no absolute log-likelihoods: return await context.score(options)")
        means = [logprob / size for logprob, size in zip(logprobs, sizes, strict=True)]
        best = means.index(max(means))
        target = record["target"]
        if (index := _number(target)) is not None and index == int(index) and _text(target) not in texts:
            return best == int(index)
        return same(options[best], target)

    return measure


def _perplexity(unit: str) -> Callable[[Record], Score]:
    def measure(record: Record) -> Score:
        options, logprobs = _likelihoods(record)
        if len(options) != 1 or not isinstance(record.get("value"), dict):
            raise ValueError("a perplexity is of one text: return await context.score([text])")
        text = str(options[0])
        sizes = {"word": len(text.split()), "byte": len(text.encode())}
        size = sizes[unit] if unit in sizes else len(record["value"]["tokens"][0])
        return -logprobs[0] / max(size, 1), max(size, 1)

    return measure


_BUILT_IN: dict[str, Metric] = {
    "exact": Metric("exact", exact),
    "contains": Metric("contains", contains),
    "f1": Metric("f1", f1),
    "choice": Metric("choice", choice),
    "json": Metric("json", json_equal),
    "acc": Metric("acc", _best_of(None)),
    "acc_norm": Metric("acc_norm", _best_of(len)),
    "acc_bytes": Metric("acc_bytes", _best_of(lambda text: len(text.encode()))),
    **{
        name: Metric(name, _perplexity(unit), is_log=True, needs_target=False)
        for name, unit in (("perplexity", "token"), ("word_perplexity", "word"), ("byte_perplexity", "byte"))
    },
}


Judge = Callable[[Path], Callable[[Record], Awaitable[Any]]]
"""Maker of a metric from a query that judges."""


def metric_named(spec: str, judge: Judge) -> Metric:
    """A metric from `-m`: a name, `regex:PATTERN`, `FILE.py:FUNCTION`, or `FILE.lq`. Raises InputError.

    A Python function gets the record's answer, target and columns, as many of them as it takes.
    """
    if spec in _BUILT_IN:
        return _BUILT_IN[spec]
    if spec.partition(":")[0] == "regex":
        return _regex(spec)
    if spec.endswith((".lq", ".lmql")):
        path = Path(spec)
        return Metric(path.stem, judge(path), _digest(path), needs_target=False)
    file, colon, name = spec.rpartition(":")
    if colon and file.endswith(".py"):
        path = Path(file)
        return Metric(name, _function(path, name), _digest(path), needs_target=False)
    known = (*_BUILT_IN, "regex", "pass@K")
    hint = did_you_mean(spec, known) or f"there are {', '.join(known)}, FILE.py:FUNCTION and FILE.lq"
    raise InputError(f"no metric is called {spec!r}", hint=hint)


def _regex(spec: str) -> Metric:
    own = spec.partition(":")[2]
    try:
        re.compile(own)
    except re.error as error:
        raise InputError(f"{own!r} is not a regular expression: {error}") from None

    def measure(record: Record) -> bool:
        return re.search(own or str(record["target"]), _text(answer_of(record))) is not None

    return Metric("regex", measure, own, needs_target=not own)


def _digest(path: Path) -> str:
    try:
        return blake2b(path.read_bytes(), digest_size=8).hexdigest()
    except OSError as error:
        raise InputError(f"the metric {str(path)!r} cannot be read: {error.strerror}") from None


def _function(path: Path, name: str) -> Callable[[Record], Any]:
    spec = spec_from_file_location(f"lq_metric_{path.stem}", path)
    assert spec is not None and spec.loader is not None, "the name ends in .py"
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"the metric {str(path)!r} cannot be imported: {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        hint = did_you_mean(name, [each for each in vars(module) if not each.startswith("_")])
        raise InputError(f"{path} has no function {name!r}", hint=hint)
    wanted: Sequence[str] = tuple(inspect.signature(function).parameters)
    places = ("answer", "target", "columns")
    count = min(len(wanted), len(places))

    def measure(record: Record) -> Any:
        return function(*(answer_of(record), record.get("target"), record.get("columns", {}))[:count])

    return measure
