# ruff: noqa: E501
"""Programs as LMQL's documentation teaches to write them, in words of our own: each runs, or is refused with a sentence
that names the line to change and what to write."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.apps.cli import main
from lmql_lite.integrations.from_lmql import MODULES
from lmql_lite.lang.keywords import OF_LMQL
from lmql_lite.models.base import Model
from tests.servers.kinds import OPENAI_CHAT
from tests.servers.stub import serving

JOKE = "Q: Why did the bicycle fall over?\nA: Because it was two tired.\n"


async def typed() -> str:
    return "Capital of Cuba?"


@dataclass(frozen=True)
class Lmql:
    """A program. `says` is the text that its model continues, and with `chat` a server in turns.

    It runs: then `holes` are some of its values, and `value` is what it returns. Or it is refused: `refused` is part
    of the sentence, `write` of the hint, `line` the place.
    """

    topic: str
    source: str
    says: str = ""
    chat: bool = False
    inputs: dict[str, Any] = field(default_factory=dict)
    holes: dict[str, Any] = field(default_factory=dict)
    value: Any = None
    notices: tuple[str, ...] = ()
    refused: str = ""
    write: str = ""
    line: int = 0


STUDY = [
    Lmql("hello", 'argmax "Say \'hello\':[TEXT]" from "openai/text" where len(TEXT) < 9', "Say 'hello': hi you", holes={"TEXT": " hi you"}),
    Lmql(
        "chain of thought",
        'argmax\n    """Q: 2 + 3?\n    A: Let us think.[STEPS]\n    So it is[RESULT]."""\nfrom "openai/text"\nwhere\n'
        '    STOPS_BEFORE(STEPS, "\\n") and RESULT in [" 4", " 5"]',
        "Q: 2 + 3?\nA: Let us think. Two and three.\nSo it is 5.",
        holes={"STEPS": " Two and three.", "RESULT": " 5"},
    ),
    Lmql(
        "meta prompting",
        'beam(n=2)\n    "Q: Who paints?\\nAn expert on this is[EXPERT]\\n{EXPERT} says:[ANSWER]"\nfrom "openai/text"\n'
        'where STOPS_BEFORE(EXPERT, "\\n") and not "\\n" in EXPERT and len(TOKENS(ANSWER)) < 20 and STOPS_AT(ANSWER, ".")',
        "Q: Who paints?\nAn expert on this is Ada\n Ada says: I do.",
        holes={"EXPERT": " Ada", "ANSWER": " I do."},
    ),
    Lmql(
        "JSON template",
        'argmax\n    """{{\n    "name": "[NAME]",\n    "age": [AGE]\n    }}"""\nfrom "openai/text"\n'
        'where STOPS_BEFORE(NAME, "\\"") and INT(AGE) and len(TOKENS(AGE)) < 4',
        '{\n"name": "Ada",\n"age": 36\n}',
        holes={"NAME": "Ada", "AGE": 36},
    ),
    Lmql(
        "distribution",
        'argmax\n    "The review is kind. So it is[CLASS]"\nfrom "openai/text"\ndistribution CLASS in [" good", " bad"]',
        "The review is kind. So it is good",
        holes={"CLASS": " good"},
    ),
    Lmql(
        "a list by a loop",
        'things = []\nargmax\n    "To pack:\\n"\n    for i in range(2):\n        "-[THING]"\n        things.append(THING.strip())\n'
        '    return things\nfrom "openai/text"\nwhere STOPS_AT(THING, "\\n")',
        "To pack:\n- Hat\n- Sun\n",
        value=["Hat", "Sun"],
    ),
    Lmql(
        "branches, and lines that go on",
        '"Do you like it?[ANSWER]" where ANSWER in [" yes", \\\n    " no"]\nif ANSWER == " yes" and \\\n    len(ANSWER) == 4:\n'
        '    "Why?[WHY]" where STOPS_AT(WHY, ".")\nelse:\n    return "no"\nreturn WHY',
        "Do you like it? yesWhy? It is red.",
        value=" It is red.",
    ),
    Lmql("regular expressions", '"Today is [DAY: r\'[0-9]{2}/[0-9]{2}\']."', "Today is 12/05.", holes={"DAY": "12/05"}),
    Lmql(
        "tweet",
        'argmax(max_len=128)\n    "A tweet:[TWEET]"\nfrom "openai/text"\nwhere len(TWEET) < 50',
        refused="argmax has no option called 'max_len'",
        write="max_tokens=",
        line=1,
    ),
    Lmql(
        "chat with its chunks",
        'argmax(chunksize=128)\n    "{:system} Be short."\n    "{:user} Capital of Peru?"\n    "{:assistant}[ANSWER]"\nfrom "chatgpt"\n'
        'where STOPS_AT(ANSWER, ".")',
        "Be short.Capital of Peru?It is Lima.",
        chat=True,
        holes={"ANSWER": "It is Lima."},
        notices=("the option chunksize is ignored",),
    ),
    Lmql(
        "chunks and chatter",
        'sample(temperature=0.0, openai_chunksize=32, verbose=True)\n    "Say:[X]"\nfrom "openai/text"\nwhere STOPS_AT(X, ".")',
        "Say: hi.",
        holes={"X": " hi."},
        notices=("the option openai_chunksize is ignored", "the option verbose is ignored"),
    ),
    Lmql(
        "a data class by its type",
        'from dataclasses import dataclass\n@dataclass\nclass Person:\n    name: str\n    age: int\n\n'
        '"Ada is 36.\\n[WHO]" where type(WHO) is Person',
        refused="the type of a hole is written inside its brackets",
        write="[WHO: Person]",
        line=7,
    ),
    Lmql(
        "decorators",
        'import lmql\n@lmql.decorators.post\ndef loud(value, text, context):\n    return value.upper()\n\n'
        '@lmql.decorators.pre\ndef known(name, context):\n    return " Rome"\n\n'
        '"In[@known PLACE] they say:[@loud X]" where STOPS_AT(X, ".")',
        "In Rome they say: ciao.",
        holes={"PLACE": " Rome", "X": " CIAO."},
    ),
    Lmql(
        "nested queries",
        "import lmql\n@lmql.query\ndef as_date():\n    '''lmql\n    \" (day/month)[DAY]\" where STOPS_AT(DAY, \"5\")\n    return DAY.strip()\n"
        "    '''\n\"When was it?[WHEN: as_date]\\nSure?[SURE]\" where SURE in [\" yes\", \" no\"]",
        "When was it? (day/month) 12/05",
        holes={"WHEN": "12/05"},
    ),
    Lmql(
        "functions within the text",
        'from lmql.lib.actions import inline_use\ndef twice(n: int) -> int:\n    """doubles"""\n    return 2 * n\n\n'
        '"Twice 21 is[SUM]" where inline_use(SUM, [twice]) and STOPS_AT(SUM, ".")',
        "Twice 21 is `twice(21) # result: 42` 42.",
        holes={"SUM": " `twice(21) # result: 42` 42."},
    ),
    Lmql(
        "reAct",
        'from lmql.lib.actions import *\ndef look(name):\n    return {"Ada": "red"}[name]\n\n"Which ball has Ada?[BALL: reAct([look])]"',
        "Which ball has Ada?\nThought: I look.\nAction: look(Ada)\nObservation: red\nAnswer: The red one.\n",
        holes={"BALL": "The red one."},
    ),
    Lmql(
        "a tool that reads the web",
        'import aiohttp_of_old\nfrom lmql.http import fetch\n"Q:[A]"',
        refused="No module named 'aiohttp_of_old'",
        line=1,
    ),
]  # fmt: skip

TOPICS = [
    Lmql("variables in one string", '"[A] and [B]." where A in ["one", "two"] and B in ["ham", "egg"]', "two and egg.", holes={"A": "two", "B": "egg"}),
    Lmql(
        "Python's own modules",
        'import math\nfrom lmql import run\n"The root of 16 is {int(math.sqrt(16))}, that of 9 is [X: int]."',
        "The root of 16 is 4, that of 9 is 3.",
        holes={"X": 3},
    ),
    Lmql(
        "stops and what is cut",
        '"Name:[FIRST] [LAST]\\n" where STOPS_BEFORE(FIRST, " ") and STOPS_AT(LAST, "e") and len(FIRST) > 1',
        "Name:Ada Lovelace\n",
        holes={"FIRST": "Ada", "LAST": "Love"},
    ),
    Lmql("numbers", '"Ten and [N]" where INT(N) and len(TOKENS(N)) < 3\nreturn N + 10', "Ten and 12", value=22),
    Lmql("words and sentences", '"Say [X]" where len(WORDS(X)) < 3 and len(SENTENCES(X)) == 1', "Say hello there", holes={"X": "hello there"}),
    Lmql("a set of options", '"Colour: [C]" where C in set(["red", "blue"]) and not C == "red"', "Colour: blue", holes={"C": "blue"}),
    Lmql(
        "a query with arguments",
        "@lmql.query\ndef about(thing, most=2):\n    '''lmql\n    \" of {thing} (at most {most}):[X]\" where STOPS_AT(X, \".\")\n    return X.strip()\n"
        "    '''\n\"A list[ITEMS: about('fruit', most=3)]\"",
        "A list of fruit (at most 3): fig.",
        holes={"ITEMS": "fig."},
    ),
    Lmql(
        "a decorator that watches",
        'from lmql import decorators\nseen = []\n@decorators.streaming\ndef watch(text, context):\n    seen.append(text)\n\n'
        '"Say:[@watch X]" where STOPS_AT(X, ".")\nreturn seen[-1]',
        "Say: hi.",
        value=" hi.",
    ),
    Lmql(
        "a conversation",
        'from lmql.lib.chat import message\n"{:system} Be short."\n"{:user}{await input()}"\n"{:assistant}[@message ANSWER]"',
        "Be short.Capital of Cuba?Havana.",
        chat=True,
        inputs={"input": typed},
        holes={"ANSWER": "Havana."},
    ),
    Lmql("the whole module by its name", 'import lmql.lib.chat\n"Say:[@lmql.lib.chat.message X]" where STOPS_AT(X, ".")', "Say: hi.", holes={"X": " hi."}),
    Lmql("several draws", 'sample(n=2, temperature=0.0)\n    "Say:[X]"\nwhere STOPS_AT(X, ".")', "Say: hi.", holes={"X": " hi."}),
    Lmql("scores within a query", '"A list:"\nscores = await lmql.score(prompt, [" Hat", " Sun"], model=model)\nreturn scores.best', "A list: Sun", inputs={"prompt": "A list:"}, value=" Sun"),
    Lmql("text without a query", 'import lmql\n"Hello"\nreturn await lmql.generate("Say:", stop=".", model=model)', "Say: hi.", value=" hi"),
    Lmql("sums", 'from lmql.lib.actions import calc\n"6 times 7 is {calc(\'6 * 7 =\')}, so[X]" where STOPS_AT(X, ".")\nreturn X', "6 times 7 is 42, so yes.", value=" yes."),
    Lmql("brackets of one's own", '"[[x]] {{y}} [X]" where STOPS_AT(X, "]")', "[x] {y} [z]", holes={"X": "[z]"}),
    Lmql(
        "few shots from a list",
        'shots = [("dog", "animal"), ("oak", "plant")]\nargmax\n    for word, kind in shots:\n        "{word}: {kind}\\n"\n    "cat:[KIND]"\nfrom "openai/text"\n'
        'where KIND in [" animal", " plant"]',
        "dog: animal\noak: plant\ncat: animal",
        holes={"KIND": " animal"},
    ),
    Lmql("lmql.F", 'from lmql import F\n"Hi"', refused="lmql.F is not here", line=1, write="compile(...)"),
    Lmql("a server of models", 'import lmql\nlmql.serve("gpt2")\n"Hi"', refused="'serve'; model('openai/NAME', base_url=...)", line=2),
    Lmql("inner parts", 'import re\nfrom lmql.runtime.bopenai import batched\n"Hi"', refused="2:1: lmql.runtime.bopenai is not here", write="leave the line out"),
    Lmql("a condition as a class", 'import lmql\nfrom lmql.ops.ops import LMQLOp\n"Hi"', refused="2:1: lmql.ops.ops is not here", write="Python function of the hole"),
    Lmql("a name with a slip", 'from lmql.lib.actions import react\n"Hi"', refused="lmql.lib.actions.react is not here", write="did you mean reAct?"),
    Lmql("a record of all calls", 'argmax(certificate=True)\n    "Hi[X]"', refused="argmax has no option called 'certificate'", write='trace="run.json"', line=1),
]  # fmt: skip


def test_there_are_seventeen_of_the_study_and_more_than_twenty_others() -> None:
    assert len(STUDY) == 17 and len(TOPICS) >= 20
    assert len({program.topic for program in STUDY + TOPICS}) == len(STUDY + TOPICS)


@pytest.mark.parametrize("program", [each for each in STUDY + TOPICS if not each.refused], ids=lambda each: each.topic)
def test_a_program_of_lmql_runs(program: Lmql) -> None:
    query = lq.compile(program.source)

    def run(model: Model) -> lq.Result:
        inputs = program.inputs | ({"model": model} if "model" in query.inputs else {})
        found: Any = query.run_sync(inputs, model=model, session=lq.Session())
        return found[0] if isinstance(found, list) else found  # type: ignore[no-any-return]

    if program.chat:
        with serving(OPENAI_CHAT, program.says) as server:
            result = run(lq.model(f"openai/{server.config.model}", base_url=server.base_url, api_key="x"))
    else:
        result = run(lq.ScriptedModel(program.says))
    assert {name: result[name] for name in program.holes} == program.holes
    assert result.value == program.value
    assert len(result.notices) == len(program.notices)
    assert all(found.startswith(wanted) for found, wanted in zip(result.notices, program.notices, strict=True))


@pytest.mark.parametrize("program", [each for each in STUDY + TOPICS if each.refused], ids=lambda each: each.topic)
def test_a_program_that_cannot_run_is_told_the_line_and_what_to_write(
    program: Lmql, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("old.lmql").write_text(program.source)
    with pytest.raises(SystemExit) as ended:
        main(["run", "old.lmql", "--model", "demo"])
    assert ended.value.code != 0
    told = capsys.readouterr().err
    assert program.refused in told and program.write in told
    assert f"old.lmql:{program.line or ''}" in told and "bug of lmql_lite" not in told


def test_the_table_of_the_compiler_has_the_names_of_the_modules() -> None:
    assert {name: tuple(sorted(names)) for name, names in OF_LMQL.items() if name != "lmql"} == {
        f"lmql.{name}": tuple(sorted(names)) for name, names in MODULES.items()
    }


# The modules ------------------------------------------------------------------------------------------------------


def test_from_python_they_are_attributes_of_the_package() -> None:
    assert {"calc", "reAct", "inline_use", "wiki"} <= set(vars(lq.lib.actions))
    assert lq.lib.chat.message == lq.Decorator()
    assert asyncio.iscoroutinefunction(lq.http.fetch)
    with pytest.raises(lq.QueryError, match=r"^lmql\.lib\.chat\.mesage is not here") as caught:
        _ = lq.lib.chat.mesage
    assert "did you mean message?" in (caught.value.hint or "")


@pytest.mark.parametrize("name", ["score", "score_sync", "generate", "generate_sync"])
def test_methods_that_models_of_lmql_had_say_what_to_write(name: str) -> None:
    for model in (lq.model("demo"), lq.ScriptedModel(""), lq.model("openai/gpt-4o", api_key="x")):
        if name == "score":  # is a method of models here, of another kind
            continue
        with pytest.raises(AttributeError, match=rf"has no attribute '{name}'; write lq\.{name}\("):
            getattr(model, name)


def test_the_first_of_the_results_of_a_run_is_the_result() -> None:
    result = lq.run_sync('"Say:[X]"', model=lq.ScriptedModel("Say: hi"))
    with pytest.raises(KeyError, match="leave out the number in brackets"):
        result[0]  # type: ignore[index]


@pytest.mark.parametrize(
    ("text", "value"), [("3 * (4 + 5)", "27"), ("7 / 2 =", "3.5"), ("-2 - +3", "-5"), ("7 // 2", "3"), ("9 % 4", "1")]
)
def test_calc_calculates(text: str, value: str) -> None:
    assert lq.lib.actions.calc(text) == value


@pytest.mark.parametrize("text", ["open('x')", "2 ** 99", "a + 1", "'a' * 3", "(1).real"])
def test_calc_runs_no_code(text: str) -> None:
    with pytest.raises(lq.InputError, match="not a sum of numbers"):
        lq.lib.actions.calc(text)


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = {"/json": json.dumps({"query": {"pages": [{"title": "Rome"}]}}), "/text": "plain"}.get(self.path)
        self.send_response(200 if body else 404)
        self.end_headers()
        self.wfile.write((body or "").encode())

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def fetch() -> Iterator[Callable[..., Any]]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        Thread(target=partial(server.serve_forever, 0.01), daemon=True).start()
        base = f"http://127.0.0.1:{server.server_port}"
        yield lambda path, *more: asyncio.run(lq.http.fetch(f"{base}{path}", *more))
        server.shutdown()


def test_fetch_gives_json_a_part_of_it_or_text(fetch: Callable[..., Any]) -> None:
    assert fetch("/json") == {"query": {"pages": [{"title": "Rome"}]}}
    assert fetch("/json", "query.pages.0.title") == "Rome"
    assert fetch("/text") == "plain"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("/gone",), "cannot be fetched: .*404"),
        (("/text", "query"), "is not JSON, so it has nothing at 'query'"),
        (("/json", "query.page"), "has nothing at 'query.page': there is no 'page'"),
        (("/json", "query.pages.7"), "there is no '7'"),
    ],
)
def test_what_cannot_be_fetched_is_a_sentence(
    fetch: Callable[..., Any], arguments: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(lq.InputError, match=sentence):
        fetch(*arguments)
