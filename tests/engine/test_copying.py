"""What hypotheses that part ways have in common, and what each has of its own (S23)."""

from __future__ import annotations

import builtins
import textwrap
from collections.abc import Mapping
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.engine.copying import NotCopied, copied, only_reads
from lmql_lite.engine.environment import HOME, Environment, Home


def made(source: str, given: Mapping[str, Any] | None = None) -> Environment:
    environment = {"__builtins__": builtins, "__name__": "__main__", HOME: Home(), **(given or {})}
    exec(textwrap.dedent(source), environment)
    return environment


def copy_of(environment: Environment, *shared: object) -> Environment:
    (fresh,) = copied([environment], shared)
    return fresh


def test_what_the_query_made_is_its_own_in_each() -> None:
    before = made("xs = [1, 2]; ys = xs; table = {'xs': xs}; pair = (xs, 1)")
    after = copy_of(before)
    after["xs"].append(3)
    assert before["xs"] == [1, 2]
    assert after["ys"] is after["xs"] is after["table"]["xs"] is after["pair"][0]


def test_what_the_caller_gave_is_shared() -> None:
    given = ["Rome"]
    before = made("own = [places]", {"places": given})
    after = copy_of(before, given)
    assert after["places"] is given
    assert after["own"] is not before["own"]
    assert after["own"][0] is given


def test_functions_see_the_variables_of_the_hypothesis_that_calls_them() -> None:
    before = made("""
        xs = [1]
        def add(n):
            xs.append(n)
            return len(xs)
        tools = {"add": add}
        """)
    after = copy_of(before)
    assert after["add"](7) == 2
    assert after["tools"]["add"] is after["add"]
    assert (before["xs"], after["xs"]) == ([1], [1, 7])


def test_a_fork_of_a_query_has_functions_of_its_own_though_they_were_made_before_it() -> None:
    """Each hypothesis has a dict of its own from the start; its functions know the one in which they were made."""
    source = """
items = ["a"]
def add(n):
    items.append(n)
    return items
class Box:
    def add(self, n):
        return add(n)
@query
def ask(n):
    '''lq
    return add(n)
    '''
"Say [X]" where len(X) == 2
"{add(X)}{Box().add(1)}[Y: ask(2)]"
return items
"""
    results = lq.run_sync(source, decoder="beam", n=3, model="demo", session=lq.Session())
    assert len({result["X"] for result in results}) == 3
    for result in results:
        assert result.value == ["a", result["X"], 1, 2]


def test_functions_keep_defaults_names_and_what_hangs_on_them() -> None:
    before = made("""
        def say(a, b=2, *, c=3):
            "Says it."
            return a + b + c
        say.calls = 4
        """)
    say = copy_of(before)["say"]
    assert (say(1), say.__doc__, say.__name__, say.calls) == (6, "Says it.", "say", 4)


def test_closures_are_copied_too() -> None:
    before = made("""
        def counter():
            count = [0]
            def more():
                count[0] += 1
                return count[0]
            return more
        more = counter()
        """)
    after = copy_of(before)
    assert [after["more"](), after["more"](), before["more"]()] == [1, 2, 1]


def test_classes_of_the_query_and_their_instances_go_along() -> None:
    before = made("""
        total = [0]
        class Base:
            __slots__ = ("name",)
            def __init__(self, name):
                self.name = name
            def add(self):
                total.append(self.name)
            @classmethod
            def make(cls):
                return cls("made")
            @property
            def all(self):
                return total
        class Derived(Base):
            def add(self):
                super().add()
        thing = Derived("x")
        """)
    after = copy_of(before)
    assert type(after["thing"]) is after["Derived"] is not before["Derived"]
    assert issubclass(after["Derived"], after["Base"])
    after["Base"].make().add()
    assert (before["total"], after["total"], after["thing"].all) == ([0], [0, "made"], [0, "made"])


@pytest.mark.parametrize(
    "loop", ["xs", "range(9)", "enumerate(xs)", "zip(xs, xs)", "{1: 2}.items()", "reversed(xs)"], ids=str
)
def test_a_loop_goes_on_in_both_from_where_it_stood(loop: str) -> None:
    before = made("xs = [1, 2, 3]")
    before["#1"] = iter(eval(loop, before))
    next(before["#1"])
    after = copy_of(before)
    assert list(after["#1"]) == list(before["#1"])


def test_a_loop_over_a_generator_cannot_be_in_two_places() -> None:
    before = made("")
    before["#1"] = (each for each in "abc")
    with pytest.raises(NotCopied):
        copy_of(before)


@pytest.mark.parametrize(
    ("setup", "call"),
    [
        ("tools = [lambda n: xs.append(n)]", "tools[0](7)"),
        ("import functools; more = functools.partial(add, 7)", "more()"),
        ("more = box.add", "more(7)"),
        ("table = {'add': box.add}", "table['add'](7)"),
        ("import functools; cached = functools.lru_cache(add)", "cached(7)"),
        ("import functools\n@functools.wraps(add)\ndef more(n): return add(n)", "more(7)"),
        ("import contextlib\n@contextlib.contextmanager\ndef door(n): yield add(n)", "door(7).__enter__()"),
        ("def later(n, function=add): function(n)", "later(7)"),
        ("class Holder:\n    call = staticmethod(add)", "Holder.call(7)"),
    ],
    ids=["lambda in a list", "partial", "method", "method in a dict", "cache", "wraps", "manager", "default", "static"],
)
def test_a_function_sees_its_hypothesis_wherever_it_is_kept(setup: str, call: str) -> None:
    before = made("""
        xs = [1]
        def add(n):
            xs.append(n)
        class Box:
            def add(self, n):
                xs.append(n)
        box = Box()
        """)
    exec(setup, before)
    after = copy_of(before)
    eval(call, after)
    assert (before["xs"], after["xs"]) == ([1], [1, 7])


def test_what_a_class_holds_is_its_own_in_each() -> None:
    before = made("""
        class Settings:
            names = []
            count = 0
        class Base:
            items = []
            def add(self, n):
                self.items.append(n)
        class Derived(Base):
            def add(self, n):
                super().add(n)
        thing = Derived()
        add = thing.add
        """)
    after = copy_of(before)
    exec("Settings.names.append(1); Settings.count += 1; thing.add(7); add(8)", after)
    assert (before["Settings"].names, before["Settings"].count, before["Base"].items) == ([], 0, [])
    assert (after["Settings"].names, after["Settings"].count, after["Base"].items) == ([1], 1, [7, 8])


def test_dataclasses_stay_dataclasses() -> None:
    before = made("""
        import dataclasses
        @dataclasses.dataclass
        class Point:
            x: int = 0
            tags: list = dataclasses.field(default_factory=list)
            def tag(self, name):
                self.tags.append(name)
        point = Point()
        """)
    after = copy_of(before)
    exec("point.tag('a'); same = point == Point(0, ['a']); names = [f.name for f in dataclasses.fields(Point)]", after)
    assert after["same"] and after["names"] == ["x", "tags"] and before["point"].tags == []


def test_what_cannot_be_copied_is_shared_and_what_holds_it_is_not() -> None:
    before = made("""
        import threading
        inner = [threading.Lock()]
        table = {"lock": inner[0], "names": [], "inner": inner}
        class Guarded:
            def __init__(self):
                self.lock, self.names = inner[0], []
        guarded = Guarded()
        """)
    after = copy_of(before)
    after["table"]["names"].append(1)
    after["guarded"].names.append(1)
    after["inner"].append(1)
    assert before["table"]["names"] == [] and before["guarded"].names == [] and len(before["inner"]) == 1
    assert after["table"]["lock"] is before["table"]["lock"] is after["guarded"].lock
    assert after["table"]["inner"] is after["inner"] and len(after["inner"]) == 2


def test_a_ring_of_values_is_copied_as_a_ring() -> None:
    before = made("ring = []; pair = (ring, 1); ring.append(pair); table = {}; table['self'] = table")
    after = copy_of(before)
    assert after["ring"][0] is after["pair"] and after["pair"][0] is after["ring"] is not before["ring"]
    assert after["table"]["self"] is after["table"] is not before["table"]


def test_values_with_a_copy_of_their_own_are_asked_for_it() -> None:
    before = made("""
        import datetime, decimal, collections, enum, numpy, re
        class Mood(enum.Enum):
            GOOD = 1
        values = [datetime.date(2024, 1, 2), decimal.Decimal("1.5"), Mood.GOOD, re.compile("a"), {1, 2}, b"x"]
        counts, queue = collections.Counter("aab"), collections.deque([1], maxlen=2)
        table, grouped = numpy.zeros(2), collections.defaultdict(list, a=[1])
        """)
    after = copy_of(before)
    assert after["values"] == before["values"] and after["values"][2] is before["Mood"].GOOD
    exec("counts['a'] += 1; queue.append(2); table[0] = 1; grouped['a'].append(2); grouped['b'].append(1)", after)
    assert before["counts"]["a"] == 2 and list(before["queue"]) == [1] and before["table"][0] == 0
    assert (
        before["grouped"] == {"a": [1]} and after["grouped"] == {"a": [1, 2], "b": [1]} and after["queue"].maxlen == 2
    )


@pytest.mark.parametrize("loop", ["rows", "enumerate(rows)", "zip(rows, [1, 2])", "map(str, rows)"], ids=str)
def test_a_loop_over_a_generator_of_the_callers_cannot_be_in_two_places(loop: str) -> None:
    rows = (each for each in "abc")
    before = made("", {"rows": rows})
    before["#1"] = iter(eval(loop, before))
    with pytest.raises(NotCopied):
        copy_of(before, rows)


def test_an_item_that_cannot_be_copied_and_was_left_behind_is_shared() -> None:
    before = made("import threading")
    before["#item"] = lock = before["threading"].Lock()
    assert copy_of(before)["#item"] is lock


def test_what_is_nested_too_deeply_is_said() -> None:
    before = made("deep = []\nfor _ in range(100_000):\n    deep = [deep]")
    with pytest.raises(NotCopied) as caught:
        copy_of(before)
    assert caught.value.name == "deep"


def test_what_cannot_be_copied_is_shared() -> None:
    before = made("import threading; lock = threading.Lock(); xs = [1]")
    after = copy_of(before)
    assert after["lock"] is before["lock"]
    assert after["threading"] is before["threading"]
    assert after["xs"] is not before["xs"]


@pytest.mark.parametrize(
    ("code", "reads"),
    [("x", True), ("x == 1", True), ("x in y and not z", False), ("x is None", True), ("f()", False), ("x[0]", False)],
    ids=str,
)
def test_python_that_only_looks_at_variables_needs_no_copy(code: str, reads: bool) -> None:
    assert only_reads(compile(code, "<q>", "eval")) == reads


def test_a_bound_method_of_a_builtin_went_on_changing_the_others_list() -> None:
    before = made("""
        import functools
        xs, ys = [], []
        add, partly, size, mapped = xs.append, functools.partial(ys.append), xs.__len__, map(xs.append, "ab")
        """)
    after = copy_of(before)
    exec("add(1); partly(2); next(mapped)", after)
    assert (before["xs"], before["ys"]) == ([], []) and (after["xs"], after["ys"]) == ([1, "a"], [2])
    assert after["size"]() == 2 and before["size"]() == 0


def test_a_weak_reference_and_a_view_went_on_showing_the_others_value() -> None:
    before = made("""
        import math, weakref
        class Thing:
            pass
        thing, data, root, join = Thing(), bytearray(b"--"), math.sqrt, "-".join
        weak, view = weakref.ref(thing), memoryview(data)
        """)
    after = copy_of(before)
    assert after["weak"]() is after["thing"] is not before["thing"]
    after["view"][0] = 65
    assert (bytes(before["data"]), bytes(after["data"])) == (b"--", b"A-")
    assert after["root"] is before["root"] and after["join"]("ab") == "a-b"


@pytest.mark.parametrize("holding", ["g()", "[g()]", "later()", "(n for n in [1])"])
def test_a_generator_under_way_was_shared(holding: str) -> None:
    before = made(f"""
        def g():
            yield 1
        async def later():
            yield 1
        it = {holding}
        """)
    with pytest.raises(NotCopied) as caught:
        copy_of(before)
    assert caught.value.name == "it" and caught.value.is_under_way


def test_a_generator_at_its_end_is_no_matter() -> None:
    before = made("it = (n for n in [1]); xs = list(it)")
    assert list(copy_of(before)["it"]) == []
