"""Imports of modules that lie beside a query or a metric, from another working folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from lmql_lite.apps.cli import lq as command

QUERY = 'import neighbour\nfrom package.part import exclaimed\n"{word}"\nreturn exclaimed(neighbour.changed(word))\n'


@pytest.fixture(autouse=True)
def files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    Path("queries/package").mkdir(parents=True)
    Path("queries/q.lq").write_text(QUERY)
    Path("queries/neighbour.py").write_text("def changed(word):\n    return word.upper()\n")
    Path("queries/package/__init__.py").write_text("")
    Path("queries/package/part.py").write_text("def exclaimed(word):\n    return word + '!'\n")
    Path("d.csv").write_text("id,word,target\n1,a,A!\n2,b,B!\n")
    yield
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(Path.cwd()) in str(sys.modules[name].__file__):
            del sys.modules[name]


def lq(*arguments: str) -> str:
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 0, done.output
    return done.output


def means() -> dict[str, float]:
    return {each["name"]: each["mean"] for each in json.loads(Path("r/report.json").read_text())["metrics"]}


def test_a_module_beside_the_query_is_found_by_run_and_eval_from_any_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lq("run", "queries/q.lq", "--var", "word=a").strip() == "A!"
    lq("eval", "queries/q.lq", "d.csv", "-o", "r", "-m", "exact")
    assert means() == {"exact": 1}
    monkeypatch.chdir("queries")
    assert lq("run", "q.lq", "--var", "word=a").strip() == "A!"
    assert lq("run", "-e", QUERY, "--var", "word=a").strip() == "A!"


def test_a_module_beside_the_query_is_found_by_its_cases() -> None:
    Path("queries/q.cases.toml").write_text('[[case]]\ninputs = { word = "a" }\nreturns = "A!"\n')
    assert "1 passed" in lq("test", "queries")


def test_cases_of_two_folders_import_their_own_neighbours_of_one_name() -> None:
    for name, mark in (("a", "1"), ("b", "2")):
        Path(name).mkdir()
        Path(name, "mark.py").write_text(f"MARK = '{mark}'\n")
        Path(name, "q.lq").write_text('import mark\n"{word}"\nreturn word + mark.MARK\n')
        Path(name, "q.cases.toml").write_text(f'[[case]]\ninputs = {{ word = "w" }}\nreturns = "w{mark}"\n')
    assert "2 passed" in lq("test", ".")


def test_a_metric_and_a_judge_find_their_own_neighbours_and_not_those_of_the_query() -> None:
    Path("metrics").mkdir()
    Path("metrics/neighbour.py").write_text("def ends(answer):\n    return answer.endswith('!')\n")
    Path("metrics/late.py").write_text("YES = True\n")
    own = "from __future__ import annotations\nfrom dataclasses import dataclass\nimport neighbour\n"
    own += "@dataclass\nclass Found:\n    is_right: bool\n"
    own += "def own(answer):\n    import late\n    return Found(neighbour.ends(answer) and late.YES).is_right\n"
    Path("metrics/own.py").write_text(own)
    Path("judges").mkdir()
    Path("judges/judge.lq").write_text('import bench\n"{answer}"\nreturn bench.score(answer)\n')
    Path("judges/bench.py").write_text("def score(answer):\n    return answer == 'A!'\n")
    metrics = ("-m", "metrics/own.py:own", "-m", "judges/judge.lq", "-m", "exact")
    lq("eval", "queries/q.lq", "d.csv", "-o", "r", *metrics)
    assert means() == {"own": 1, "judge": 0.5, "exact": 1}
