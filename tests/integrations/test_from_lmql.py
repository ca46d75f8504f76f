"""Programs as LMQL's documentation teaches to write them, in words of our own: each runs, or is refused with a sentence
that names the line to change and what to write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import lmql_lite as lq
from lmql_lite.apps.cli import main
from lmql_lite.integrations.from_lmql import MODULES
from lmql_lite.lang.keywords import OF_LMQL
from lmql_lite.models.base import Model
from tests.servers.answering import Reply, answering
from tests.servers.kinds import OPENAI_CHAT
from tests.servers.stub import serving


async def typed() -> str:
    return "Capital of Cuba?"


@dataclass(frozen=True)
class Lmql:
    """A program. `says` is the text that its model continues, and with `chat` a server in turns.

    It runs: then `holes` are some of its values, and `value` is what it returns. Or it is refused: `refused` is part
    of the sentence, `write` of the hint, `line` the place.
    """

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


def programs() -> Iterator[tuple[str, Lmql]]:
    """Topics and programs of `from_lmql.txt`."""
    _, *found = Path(__file__).with_name("from_lmql.txt").read_text("utf-8").split("\n=== ")
    for each in found:
        head, _, source = each.partition("---\n")
        topic, *lines = head.splitlines()
        told = (line.split(" = ", 1) for line in lines)
        yield topic, Lmql(source.rstrip("\n"), **{name: eval(value, {"typed": typed}) for name, value in told})


PROGRAMS = dict(programs())
RUN = {topic: program for topic, program in PROGRAMS.items() if not program.refused}
REFUSED = {topic: program for topic, program in PROGRAMS.items() if program.refused}


@pytest.mark.parametrize("program", RUN.values(), ids=RUN)
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


@pytest.mark.parametrize("program", REFUSED.values(), ids=REFUSED)
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


@pytest.fixture
def fetch() -> Iterator[Callable[..., Any]]:
    replies = {"/json": Reply(200, {"query": {"pages": [{"title": "Rome"}]}}), "/text": Reply(200, b"plain")}
    with answering(lambda request: replies.get(request.path, Reply(404))) as server:
        yield lambda path, *more: asyncio.run(lq.http.fetch(server.root + path, *more))


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
