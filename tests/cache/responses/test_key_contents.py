"""Requests that hold functions, pictures, arrays and objects: equal ones share a key, and others never do."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import enum
import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import lmql_lite as lq
from lmql_lite.cache.responses.keys import KeyMaker
from tests.cache.responses.models import GREEDY, Counting
from tests.conftest import ROOT

HAS_TORCH = importlib.util.find_spec("torch") is not None
NEEDS_TORCH = pytest.mark.skipif(not HAS_TORCH, reason="needs torch: pip install 'lmql-lite[local]'")
if HAS_TORCH:
    import torch

LIMIT = 5
KEYS = KeyMaker("m|", None, None)


def key(value: Any) -> str:
    """Key of a request that holds a value, as the log shows it."""
    return key_of(GREEDY, value)


def key_of(*arguments: Any) -> str:
    found = KEYS.key("generate_until", lq.Request("generate_until", ("question", *arguments)))
    return found.key or f"no key: {found.problem}"


def kinds(table: Iterable[str]) -> list[Any]:
    """Names of a table's rows; those of tensors are skipped without torch."""
    return [pytest.param(name, marks=NEEDS_TORCH) if "tensor" in name else name for name in table]


def made(source: str, name: str = "f", **names: Any) -> Any:
    """Definition of a name in a module, made anew at each call."""
    module = types.ModuleType("made_for_a_test")
    vars(module).update(names)
    exec(source, vars(module))
    return vars(module)[name]


def closed(value: Any) -> Callable[[Any], Any]:
    return lambda doc: [doc, value]


@dataclasses.dataclass
class Visual:
    crop: Any = 0

    def __call__(self, doc: Any) -> Any:
        return doc["image"], self.crop

    def of(self, doc: Any) -> Any:
        return doc["image"].crop(self.crop)

    def two(self, doc: Any) -> Any:
        return doc["image"], 2


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    x: Any


class Shade(enum.Enum):
    DARK = 1
    LIGHT = 2


class Named(str):
    pass


def picture(mode: str = "RGB", size: tuple[int, int] = (4, 2), colour: Any = 7, **info: Any) -> Image.Image:
    made = Image.new(mode, size, colour)
    made.info.update(info)
    return made


def palette(colours: list[int]) -> Image.Image:
    made = Image.new("P", (2, 2), 1)
    made.putpalette(colours)
    return made


APART: dict[str, list[Callable[[], Any]]] = {
    "code of functions": [
        lambda: made("def f(d): return d['image']"), lambda: made("def f(d): return d['images']"),
        lambda: made("def f(d): return [d['image']]"), lambda: made("def f(d): return d.image"),
        lambda: made("def f(d): return 1"), lambda: made("def f(d): return 1.0"), lambda: made("def f(d): return True"),
        lambda: made("def f(d): return d in {1, 2}"), lambda: made("def f(d): return d in {1, 3}"),
        lambda: made("def f(d): return [x + 1 for x in d]"), lambda: made("def f(d): return [x + 2 for x in d]"),
        lambda: made("def f(d):\n try:\n  return g(d)\n except ValueError:\n  return 1", g=len),
        lambda: made("def f(d):\n try:\n  return g(d)\n except KeyError:\n  return 1", g=len),
        lambda: made("f = lambda d: d"), lambda: made("async def f(d): return 1"),
    ],
    "what a function has and reads": [
        lambda: made("def f(d, n=1): return n"), lambda: made("def f(d, n=2): return n"),
        lambda: made("def f(d, *, n=1): return n"), lambda: closed(1), lambda: closed(2), lambda: closed([1]),
        lambda: closed(closed(1)), lambda: closed(closed(2)), lambda: made("def f(d): return 1\nf.mode = 'a'"),
        lambda: made("def f(d): return N", N=1), lambda: made("def f(d): return N", N=2),
        lambda: made("def f(d): return N"), lambda: made("def g(d): return 1\ndef f(d): return g(d)"),
        lambda: made("def f(d): return N / d", N=Path("a")), lambda: made("def f(d): return N / d", N=Path("b")),
        lambda: made("def g(d): return 2\ndef f(d): return g(d)"),
        lambda: made("class A:\n n = 1\ndef f(d): return A.n"), lambda: made("class A:\n n = 2\ndef f(d): return A.n"),
        lambda: made("import re\nP = re.compile('a')\ndef f(d): return P.sub('', d)"),
        lambda: made("import re\nP = re.compile('b')\ndef f(d): return P.sub('', d)"),
        lambda: made("def even(n): return n == 0 or odd(n - 1)\ndef odd(n): return n != 0 and even(n - 1)\nf = even"),
        lambda: made("def even(n): return n == 0 or odd(n - 1)\ndef odd(n): return n != 0 and even(n - 2)\nf = even"),
    ],
    "partials, methods and callables": [
        lambda: functools.partial(closed(1), 1), lambda: functools.partial(closed(1), 2),
        lambda: functools.partial(closed(1), d=1), lambda: functools.partial(closed(2), 1),
        lambda: Visual(1), lambda: Visual(2), lambda: Visual(1).of, lambda: Visual(2).of, lambda: Visual(1).two,
        lambda: Visual, lambda: types.MethodType(lambda self, d: 1, Visual(1)), lambda: len, lambda: print,
        lambda: str.upper, lambda: "a".join, lambda: "b".join, lambda: json.dumps, lambda: json.loads, lambda: dict,
        lambda: functools.lru_cache(closed(1)), lambda: functools.lru_cache(closed(2)), lambda: np.add, lambda: np.sum,
        lambda: made("class f:\n def __call__(self): return 1")(),
        lambda: made("class f:\n def __call__(self): return 2")(),
        lambda: made("class f:\n @staticmethod\n def g(): return 1").g, lambda: made("class A: pass", "A"),
        lambda: made("class A:\n @property\n def x(self): return 1", "A"),
        lambda: made("class A:\n @property\n def x(self): return 2", "A"),
    ],
    "arrays": [
        lambda: np.zeros(4), lambda: np.zeros(4, np.float32), lambda: np.zeros((2, 2)), lambda: np.ones(4),
        lambda: np.array(["a"]), lambda: np.array([1, "a"], object), lambda: np.array([1, "b"], object),
        lambda: np.array([-0.0]), lambda: np.array([0.0]), lambda: np.zeros(2, ">i4"), lambda: np.zeros(2, "<i4"),
        lambda: np.zeros(2, [("a", "i4")]), lambda: np.zeros(2, [("b", "i4")]), lambda: np.ma.masked_equal([1, 2], 1),
        lambda: np.ma.masked_equal([1, 2], 2), lambda: np.datetime64("2020"), lambda: [0.0] * 4,
    ],
    "tensors": [
        lambda: torch.zeros(4), lambda: torch.zeros(4, dtype=torch.bfloat16), lambda: torch.ones(4),
        lambda: torch.zeros(2, 2), lambda: torch.zeros(4, dtype=torch.bool), lambda: torch.bfloat16,
        lambda: torch.nn.Parameter(torch.zeros(4)), lambda: np.zeros(4, np.float32), lambda: torch.float16,
    ],
    "pictures": [
        picture, lambda: picture(colour=8), lambda: picture(size=(2, 4)), lambda: picture("RGBA"), lambda: picture("L"),
        lambda: picture(transparency=1), lambda: palette([1, 2, 3, 4, 5, 6]), lambda: palette([1, 2, 3, 4, 5, 7]),
        lambda: [picture(), picture()], lambda: [picture()], lambda: lq.image(b"one"), lambda: lq.image(b"two"),
        lambda: lq.video(b"one"),
    ],
    "other values": [
        lambda: b"", lambda: b"a", lambda: "", lambda: 0, lambda: False, lambda: None, lambda: "0", lambda: 1,
        lambda: True, lambda: float("nan"), lambda: float("inf"), lambda: 10**400, lambda: 10**5000, lambda: "\ud800",
        lambda: Shade.DARK, lambda: Shade.LIGHT, lambda: {1: 2}, lambda: {"1": 2}, lambda: {"$": 1}, lambda: {1, "2"},
        lambda: Slotted(1), lambda: Slotted(True), lambda: Decimal("1.0"), lambda: Decimal("1.00"), lambda: 1j,
        lambda: re.compile("a"), lambda: re.compile("a", re.I), lambda: range(3), lambda: Named("a"),
        lambda: types.SimpleNamespace(a=1), lambda: types.SimpleNamespace(a=2), lambda: [[["a"]]], lambda: int | str,
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", kinds(APART))
def test_values_that_differ_have_keys_that_differ_and_equal_ones_share_theirs(kind: str) -> None:
    """Each value is made twice, and so has other addresses."""
    keys = [key(make()) for make in APART[kind]]
    again = [key(make()) for make in APART[kind]]
    for number, found in enumerate(keys):
        assert not found.startswith("no key"), (number, found)
        assert found == again[number], number
        assert keys.index(found) == number, (keys.index(found), number)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda: np.zeros((2, 2)), lambda: np.zeros((2, 2), order="F")),
        (lambda: np.arange(9)[::3], lambda: np.array([0, 3, 6])),
        (lambda: np.float32(0.5), lambda: 0.5),
        pytest.param(lambda: torch.arange(9)[::3], lambda: torch.tensor([0, 3, 6]), marks=NEEDS_TORCH),
        pytest.param(lambda: torch.ones(2, requires_grad=True), lambda: torch.ones(2), marks=NEEDS_TORCH),
        (lambda: OrderedDict(a=1, b=2), lambda: {"b": 2, "a": 1}),
        (lambda: {"a", "b", "c"}, lambda: {"c", "b", "a"}),
        (lambda: {1: "a", 2: "b"}, lambda: {2: "b", 1: "a"}),
        (lambda: (1, 2), lambda: [1, 2]),
        (lambda: -0.0, lambda: 0),
        (lambda: made("def f(d):\n    return d"), lambda: made("\n\n# a comment\ndef f(d): return d")),
    ],
)
def test_what_is_written_otherwise_but_is_the_same_has_one_key(one: Callable[[], Any], other: Any) -> None:
    assert key(one()) == key(other())


def cyclic() -> Any:
    found: list[Any] = []
    found.append(found)
    return found


UNKEYED: dict[str, tuple[Callable[[], Any], str]] = {
    "object": (object, "type object, which no key can represent"),
    "generator": (lambda: (each for each in "ab"), "type generator"),
    "open file": (lambda: open(os.devnull), "type TextIOWrapper"),  # noqa: SIM115
    "function that reads an object": (
        lambda: made("def f(d): return CLIENT", CLIENT=object()), "type object, which no key can represent",
    ),
    "method of an object that holds a generator": (lambda: Visual(each for each in "ab").of, "generator"),
    "missing file": (lambda: Path("no such file.mp4"), "the path 'no such file.mp4', which is not a file"),
    "folder": (lambda: Path("."), "the path '.', which is not a file"),
    "list in itself": (cyclic, "nested too deeply"),
    "meta tensor": (lambda: torch.zeros(2, device="meta"), "type Tensor, which cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("case", kinds(UNKEYED))
def test_one_warning_says_why_requests_of_a_kind_cannot_be_kept(tmp_path: Path, case: str) -> None:
    make, reason = UNKEYED[case]
    value = make()
    requests = [lq.Request("generate_until", (f"question {number}", GREEDY, value)) for number in range(4)]
    model = Counting()
    with lq.ResponseCache.open(tmp_path, model="m") as cache:
        with pytest.warns(RuntimeWarning, match="requests are sent each time, and not kept") as caught:
            cache.execute(model, "generate_until", requests)
        assert len(caught) == 1 and reason in str(caught[0].message)
        asyncio.run(cache.aexecute(model, "generate_until", requests))
        assert not cache.store(requests[0], "x") and cache.lookup(requests[0]) is None
        assert len(model.asked) == 8 and cache.get_stats()["unkeyed"] == 8 and len(cache.notices) == 1
    if hasattr(value, "close"):
        value.close()


def test_the_warning_comes_before_the_model_is_asked(tmp_path: Path) -> None:
    model = Counting()
    with (
        lq.ResponseCache.open(tmp_path, model="m") as cache,
        pytest.raises(RuntimeWarning, match="type object"),  # as the tests turn warnings into errors
    ):
        cache.execute(model, "generate_until", [lq.Request("generate_until", ("q", GREEDY, object()))])
    assert model.calls == 0


# -- requests as lmms-eval makes them


@pytest.mark.parametrize("position", [1, 2, 3])
def test_a_function_at_any_place_of_a_request_is_kept(tmp_path: Path, position: int) -> None:
    """lmms-eval writes `(ctx, doc_to_messages, options, ...)` for chat models, `(ctx, options, doc_to_visual, ...)` for
    others."""

    def arguments(number: int) -> tuple[Any, ...]:
        rest = [f"question {number}", GREEDY, number, "mme", "test"]
        rest.insert(position, made("def f(doc): return [doc['image']]"))
        return tuple(rest)

    requests = [lq.Request("generate_until", arguments(number)) for number in range(4)]
    for expected in (4, 0):
        model = Counting()
        with lq.ResponseCache.open(tmp_path, model="m") as cache:
            asyncio.run(cache.aexecute(model, "generate_until", requests))
        assert len(model.asked) == expected


TWO = """
import json, sys
import lmql_lite as lq
from lmql_lite.cache.responses.keys import KeyMaker
sys.path.insert(0, sys.argv[1])
import task

def local(doc):
    return helper(doc), {"a", "b", "c"}

def helper(doc):
    return doc["image"]

options = {"temperature": 0, "allowed": {"a", "b", "c"}}
requests = [lq.Request("generate_until", ("q", options, each, 1)) for each in
            (task.visual, local, task.Visual(2).of, lambda d: task.visual(d), task.Visual)]
print(json.dumps([KeyMaker("m|", None, None).key("generate_until", request).key for request in requests]))
"""
TASK = """
import logging
import numpy as np
import {helper}
from functools import lru_cache
logger = logging.getLogger("task")
SIZES = frozenset(("a", "b", "c", "d"))

@lru_cache
def visual(doc):
    logger.info("visual")
    return {helper}.crop(np.asarray(doc["image"])), SIZES

class Visual:
    def __init__(self, n):
        self.n = n

    def of(self, doc):
        return visual(doc), self.n
"""


def test_keys_of_functions_do_not_depend_on_the_process_but_on_the_modules_that_they_use(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(TASK.format(helper="helping"))
    (tmp_path / "helping.py").write_text("def crop(image): return image[:2]\n")

    def keys(seed: str) -> list[str]:
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run([sys.executable, "-c", TWO, str(tmp_path)], env=environment, capture_output=True,
                              text=True, check=True)  # fmt: skip
        return list(json.loads(done.stdout))

    first, second = keys("1"), keys("2")
    assert first == second and all(first) and len(set(first)) == 5
    (tmp_path / "helping.py").write_text("def crop(image): return image[:3]\n")
    third = keys("1")
    assert [one == other for one, other in zip(first, third, strict=True)] == [False, True, False, False, False]


def test_a_function_whose_global_changes_between_two_calls_is_asked_again(tmp_path: Path) -> None:
    function = made("def f(d): return N", N=1)
    request = lq.Request("generate_until", ("q", GREEDY, function))
    model = Counting()
    with lq.ResponseCache.open(tmp_path, model="m") as cache:
        for value, expected in ((1, 1), (1, 1), (2, 2), (1, 2)):
            function.__globals__["N"] = value
            cache.execute(model, "generate_until", [request])
            assert len(model.asked) == expected


# -- files


def test_a_text_that_is_the_path_of_a_picture_is_asked_again_when_the_picture_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = Counting()
    requests = [lq.Request("generate_until", ("q", GREEDY, {"image": "cat.png"})),
                lq.Request("generate_until", (f"file://{tmp_path}/cat.png", GREEDY)),
                lq.Request("generate_until", ("cat", GREEDY))]  # fmt: skip
    (tmp_path / "cat").write_text("no picture")
    with lq.ResponseCache.open(tmp_path, model="m") as cache:
        for data, expected in ((None, 3), (b"one", 5), (b"one", 5), (b"two", 7), (b"one", 7)):
            if data is not None:
                (tmp_path / "cat.png").write_bytes(data)
                assert key(tmp_path / "cat.png") == key(tmp_path / "cat.png") != key("cat.png")
            cache.execute(model, "generate_until", requests)
            assert len(model.asked) == expected


def test_all_frames_of_a_moving_picture_count(tmp_path: Path) -> None:
    frames = [picture(colour=each, size=(2, 2)) for each in ((1, 2, 3), (4, 5, 6), (7, 8, 9))]
    for name, some in (("a", frames), ("b", [*frames[:2], frames[0]])):
        some[0].save(tmp_path / f"{name}.gif", save_all=True, append_images=some[1:])
    with Image.open(tmp_path / "a.gif") as one, Image.open(tmp_path / "b.gif") as other:
        one.seek(1)
        first = key(one)
        assert first != key(other) and one.tell() == 1
        one.seek(0)
        assert first == key(one)


# -- options


def test_options_and_requests_are_not_changed(tmp_path: Path) -> None:
    options = {"temperature": 0, "stop": "a", "extra_headers": {"X-Route": "a", "Authorization": "b"},
               "extra_body": {"api_key": "s", "list": [{"n": 1.0}]}, "max_new_tokens": 5.0}  # fmt: skip
    metadata = {"task": "t", "doc_id": 1}
    request = lq.Request("generate_until", (["a", {"b": 1.0}], options), metadata=metadata)
    before = copy.deepcopy((request.arguments, options, metadata))
    with lq.ResponseCache.open(tmp_path, model="m") as cache:
        cache.execute(Counting(), "generate_until", [request])
        cache.lookup(request)
        cache.store(request, "x")
        asyncio.run(cache.aexecute(Counting(), "generate_until", [request]))
    assert repr((request.arguments, options, metadata)) == repr(before)


class Harness:
    """A task that has a whole data set, all its requests, and things that no key can represent."""

    def __init__(self, count: int = 4, crop: int = 0) -> None:
        self._config = {"doc_to_visual": made("def f(doc, crop): return [doc['image']]"), "crop": crop}
        self.documents = [picture(size=(64, 64), colour=number) for number in range(count)]
        self.generator = (each for each in self.documents)
        self.requests = [
            lq.Request("generate_until", (f"question {number}", copy.deepcopy(GREEDY), self.doc_to_visual, number,
                                          "mme", "test"), metadata={"task": "mme", "doc_id": number})
            for number in range(count)
        ]  # fmt: skip

    @property
    def config(self) -> dict[str, Any]:
        return self._config

    def crop(self) -> Any:
        return self.config["crop"]

    def doc_to_visual(self, doc: dict[str, Any]) -> Any:
        return self.config["doc_to_visual"](doc, self.crop())

    def with_all(self, doc: dict[str, Any]) -> Any:
        return vars(self), doc


class Cropped(Harness):
    def crop(self) -> Any:
        return 7


def test_of_a_task_only_that_counts_which_its_method_reads(tmp_path: Path) -> None:
    """lmms-eval's tasks hold their data set and all their requests; another `--limit` asks nothing again."""
    expected = [(Harness(4), 4), (Harness(4), 0), (Harness(6), 2), (Harness(6, crop=1), 6), (Cropped(6), 6)]
    for task, count in expected:
        model = Counting()
        with lq.ResponseCache.open(tmp_path, model="m") as cache:
            cache.execute(model, "generate_until", task.requests)
            assert (len(model.asked), cache.notices) == (count, [])


def test_a_value_that_a_task_computes_once_does_not_change_the_key() -> None:
    source = (
        "import functools\nclass A:\n @functools.cached_property\n def n(self): return {}\n def m(self): return self.n"
    )
    one, other = made(source.format(1) + "\no = A()", "o"), made(source.format(2) + "\no = A()", "o")
    before = key(one.m)
    assert one.m() == 1 and key(one.m) == before != key(other.m)


@pytest.mark.parametrize(
    "body",
    ["g(self)", "(lambda me: me.n)(self)", "[self.n for _ in 'ab' if self]", "getattr(self, 'n')", "vars(self)"],
)
def test_a_method_counts_with_the_attributes_of_its_object_that_its_code_names(body: str) -> None:
    source = f"def g(o): return o.n\nclass A:\n def m(self): return {body}\no = A()\no.n = "
    keys = [key(made(f"{source}{number}", "o").m) for number in (1, 2, 1)]
    assert keys[0] == keys[2] != keys[1] and not keys[0].startswith("no key")


ODD_OPTIONS = {
    "function": print,
    "array": np.array([1, 2]),
    "list": [types.SimpleNamespace()],
    "dict": {"deep": (object(),)},
}


@pytest.mark.parametrize("value", ODD_OPTIONS.values(), ids=ODD_OPTIONS)
def test_a_function_or_an_object_among_the_options_is_refused_by_the_name_of_the_option(value: Any) -> None:
    inner = "deep" if isinstance(value, dict) else "extra"
    found = key_of(GREEDY | {"extra": value})
    assert found.startswith(f"no key: the option {inner!r} holds a value of type ") and "write options as text" in found
