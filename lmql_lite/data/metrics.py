"""Metrics of `lq eval`: each computes a number from the record of one attempt. A record has the row's columns, the
target and the answer, so scoring asks no model."""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from lmql_lite.data.equality import bare, holds, index, is_blank, json_value, same, text, words
from lmql_lite.errors import InputError, did_you_mean

Record = Mapping[str, Any]
NO_TARGET = "the row has no target"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric by the name that the user gave it. `version` changes when its definition does.

    `needs_target`: a row without target has no score. The target null is right for the answer None; any other answer
    has no score.
    """

    name: str
    measure: Callable[[Record], Any]
    version: str = ""
    needs_target: bool = True

    async def score(self, record: Record) -> float:
        """Score of a record. Raises ValueError with a sentence where there is none."""
        if self.needs_target and record.get("target") is None and ("target" not in record or has_answer(record)):
            raise ValueError(NO_TARGET)
        found = self.measure(record)
        if inspect.isawaitable(found):
            found = await found
        if isinstance(found, str) or found is None:
            raise ValueError(f"{self.name} returned {found!r}, and a score is a number or a bool")
        if not math.isfinite(score := float(found)):
            raise ValueError(f"{self.name} returned {score}, which is not a score")
        return score


def answer_of(record: Record) -> Any:
    """The answer of an attempt: what its query returned; of a query without `return`, its last hole."""
    if record.get("value") is not None or record.get("returns"):
        return record.get("value")
    holes = [value for name, value in record.get("variables", {}).items() if not name.startswith("P(")]
    return holes[-1] if holes else None


def has_answer(record: Record) -> bool:
    return answer_of(record) is not None


def _targets(record: Record, *, takes_blank: bool = True) -> list[Any]:
    """The target, or the several of a list. Raises ValueError where there is none."""
    target = record["target"]
    found = target if isinstance(target, list) else [target]
    if not takes_blank:
        found = [each for each in found if not is_blank(each)]
    if not found:
        raise ValueError(NO_TARGET)
    return found


def exact(record: Record) -> bool:
    target, answer = record["target"], answer_of(record)
    return same(answer, target) or (isinstance(target, list) and any(same(answer, each) for each in target))


def contains(record: Record) -> bool:
    answer = answer_of(record)
    targets = _targets(record, takes_blank=False)
    return any(same(answer, each) or (answer is not None and holds(answer, each)) for each in targets)


def f1(record: Record) -> float:
    """Overlap of words, nearly as SQuAD counts it; of several targets the best."""
    answer = answer_of(record)
    found = words(answer)

    def overlap(target: Any) -> float:
        if same(answer, target):
            return 1.0
        wanted = words(target)
        common = sum((Counter(found) & Counter(wanted)).values())
        return 2 * common / (len(found) + len(wanted)) if common else 0.0

    targets = _targets(record)
    return 1.0 if same(answer, record["target"]) else max(map(overlap, targets))


def regex(record: Record) -> bool:
    """The target, or one of several, as a regular expression that is found in the answer, or equality."""
    answer = answer_of(record)
    for target in _targets(record, takes_blank=False):
        if same(answer, target):
            return True
        try:
            if any(re.search(text(target), each) for each in _searched(answer)):
                return True
        except re.error as error:
            raise ValueError(f"{target!r} is not a regular expression: {error}") from None
    return False


def choice(record: Record) -> bool:
    """Equality without case and without the punctuation around; a whole number as target is an index into the row's
    `choices`."""
    answer = answer_of(record)
    if not (targets := accepted(record)):
        raise ValueError(NO_TARGET)
    if isinstance(record["target"], list) and same(answer, record["target"]):
        return True
    return any(same(answer, each) or bare(answer) == bare(each) for each in targets)


def accepted(record: Record) -> list[Any]:
    """The target, or the several of a list; a number that is an index into the row's `choices` as that choice."""
    target, choices = record["target"], record.get("columns", {}).get("choices")
    options = choices if isinstance(choices, list) else []
    targets = target if isinstance(target, list) else [target]
    return [options[place] if (place := _index(each, options)) is not None else each for each in targets]


def _index(target: Any, options: Sequence[Any]) -> int | None:
    """A target that is a number as an index of options. A text is no index, also if it is spelled like one."""
    return index(target, len(options)) if isinstance(target, int | float) else None


def json_equal(record: Record) -> bool:
    """Equality as JSON: keys in any order, 1 equals 1.0, true is not a number. A text that is not JSON is itself."""
    return bool(json_value(answer_of(record)) == json_value(record["target"]))


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


def _is_target(best: int, options: Sequence[Any], target: Any) -> bool:
    """Equality of the best option and a target: a number is an index, a text is an option. A text that is none of the
    options may be an index too, since a CSV file has texts only."""
    place = _index(target, options)
    if place is None and isinstance(target, str) and not any(same(option, target) for option in options):
        place = index(target, len(options))
    return same(options[best], target) if place is None else bool(options[best] == options[place])


def likeliest(record: Record) -> bool:
    """Equality of the option with the highest log-likelihood and the target."""
    options, logprobs = _likelihoods(record)
    return _is_best(record, options, logprobs)


def likeliest_per_character(record: Record) -> bool:
    """The same with log-likelihoods divided by the lengths of their options, without the blank before them."""
    options, logprobs = _likelihoods(record)
    if not isinstance(record.get("value"), dict):
        raise ValueError("a distribution has no absolute log-likelihoods: return await context.score(options)")
    named = record.get("columns", {}).get("choices")
    counted = named if isinstance(named, list) and len(named) == len(options) else options
    sizes = [max(len(str(option)), 1) for option in counted]
    return _is_best(record, options, [logprob / size for logprob, size in zip(logprobs, sizes, strict=True)])


def _is_best(record: Record, options: Sequence[Any], means: Sequence[float]) -> bool:
    if not means or any(map(math.isnan, means)):
        raise ValueError("the options have no log-likelihoods")
    best = means.index(max(means))
    return any(_is_target(best, options, target) for target in _targets(record))


_VERSION = "4"
_MEASURES: Mapping[str, Callable[[Record], Any]] = {
    "exact": exact,
    "contains": contains,
    "regex": regex,
    "f1": f1,
    "choice": choice,
    "json": json_equal,
    "acc": likeliest,
    "acc_norm": likeliest_per_character,
}


Judge = Callable[[Path], Callable[[Record], Awaitable[Any]]]
"""Maker of a metric from a query that judges."""


def metric_named(spec: str, judge: Judge) -> Metric:
    """A metric from `-m`: a name, `regex:PATTERN`, `FILE.py:FUNCTION`, or `FILE.lq`. Raises InputError.

    A Python function gets the record's answer, target and columns, as many of them as it takes.
    """
    if measure := _MEASURES.get(spec):
        return Metric(spec, measure, _VERSION)
    kind, colon, pattern = spec.partition(":")
    if kind == "regex" and colon:
        return Metric("regex", _matching(pattern), f"{_VERSION}:{pattern}", needs_target=False)
    if spec.endswith((".lq", ".lmql")):
        path = Path(spec)
        return Metric(path.stem, judge(path), _digest(path), needs_target=False)
    file, colon, name = spec.rpartition(":")
    if colon and file.endswith(".py"):
        path = Path(file)
        version = _digest(path)
        return Metric(name, _function(path, name), version, needs_target=False)
    known = (*_MEASURES, "regex:PATTERN")
    hint = did_you_mean(spec, known) or f"there are {', '.join(known)}, FILE.py:FUNCTION and FILE.lq"
    raise InputError(f"no metric is called {spec!r}", hint=hint)


def _matching(pattern: str) -> Callable[[Record], bool]:
    """Metric: the pattern is found in the answer."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise InputError(f"{pattern!r} is not a regular expression: {error}") from None
    return lambda record: any(map(compiled.search, _searched(answer_of(record))))


def _searched(answer: Any) -> list[str]:
    """Texts in which a pattern is looked for: that of an answer, without what cannot be seen and as it is."""
    return [] if answer is None else [text(answer), *([answer.strip()] if isinstance(answer, str) else [])]


def _digest(path: Path) -> str:
    try:
        return f"{_VERSION}:{blake2b(path.read_bytes(), digest_size=8).hexdigest()}"
    except OSError as error:
        raise InputError(f"the metric {str(path)!r} cannot be read: {error.strerror}") from None


@contextmanager
def only_modules_beside(folder: Path) -> Iterator[None]:
    """Context in which Python imports the modules of a folder before all others. Afterwards they are forgotten, so that
    modules of the same names in another folder are found there, and the folder comes after all others, for imports
    inside functions."""
    name, before = str(folder.resolve()), set(sys.modules)
    sys.path.insert(0, name)
    try:
        yield
    finally:
        sys.path.remove(name)
        if name not in sys.path:
            sys.path.append(name)
        for module in set(sys.modules) - before:
            place = getattr(sys.modules[module], "__file__", None)
            if place is not None and folder.resolve() in Path(place).resolve().parents:
                del sys.modules[module]


def _function(path: Path, name: str) -> Callable[[Record], Any]:
    own = f"lq_metric_{path.stem}_{blake2b(str(path.resolve()).encode(), digest_size=4).hexdigest()}"
    spec = spec_from_file_location(own, path)
    assert spec is not None and spec.loader is not None, "the name ends in .py"
    module = module_from_spec(spec)
    sys.modules[own] = module  # where a dataclass looks its module up
    try:
        with only_modules_beside(path.parent):
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
