"""The extension for VS Code: its grammars in VS Code's own tokenizer, and the package that is built."""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

HERE = Path(__file__).parents[3] / "editors" / "vscode"
pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or not (HERE / "node_modules").is_dir(),
    reason="needs the extension's packages: npm ci --ignore-scripts, in editors/vscode",
)
QUERY = """\
sample(n=2)
    "{:user} for {place}: [@str.strip THING: int] [[no]]\\n" where STOPS_AT(THING, "[no]")
    x = "[no]"  # no [hole]
"""
PYTHON = '''\
class Trips:
    @lq.query
    def packing(self, place: str) -> str:
        """lq
        "for {place}: [THING]" where len(THING) < 3
        return THING
        """
        raise NotImplementedError("[NO]")

def other():
    """A docstring "[NO]" where nothing is a query."""
'''


def scoped(language: str, text: str, scope: str) -> list[str]:
    """The pieces of the text that have a scope."""
    command = ["node", "test/tokens.mjs", language]
    done = subprocess.run(command, cwd=HERE, input=text, capture_output=True, text=True, check=True, timeout=60)
    return [piece for line in json.loads(done.stdout) for piece, scopes in line if scope in " ".join(scopes)]


@pytest.mark.parametrize(
    ("scope", "pieces"),
    [
        ("variable.other.hole.lq", ["THING"]),
        ("keyword.control.decoder.lq", ["sample"]),
        ("keyword.control.clause.lq", ["where"]),
        ("support.function.constraint.lq", ["STOPS_AT"]),
        ("entity.name.tag.role.lq", ["{:user}"]),
        ("comment.line", ["# no [hole]"]),
    ],
)
def test_words_of_a_query_have_their_colours(scope: str, pieces: list[str]) -> None:
    assert [each.strip() for each in scoped("source.lq", QUERY, scope) if each.strip()] == pieces


def test_a_query_in_a_docstring_is_coloured_and_python_goes_on_behind_it() -> None:
    assert scoped("source.python", PYTHON, "variable.other.hole.lq") == ["THING"]
    assert scoped("source.python", PYTHON, "keyword.control.clause.lq") == ["where"]
    assert "NotImplementedError" in scoped("source.python", PYTHON, "support.type.exception.python")
    assert "other" in scoped("source.python", PYTHON, "entity.name.function.python")


def test_one_command_builds_the_package_with_every_file_that_it_names(tmp_path: Path) -> None:
    built = HERE / "lmql-lite.vsix"
    contents = []
    for _ in range(2):
        subprocess.run(["npm", "run", "--silent", "package"], cwd=HERE, check=True, capture_output=True, timeout=120)
        contents.append(built.read_bytes())
    assert contents[0] == contents[1]
    with zipfile.ZipFile(built) as package:
        assert package.testzip() is None
        names = set(package.namelist())
        about = json.loads(package.read("extension/package.json"))
        grammar = json.loads(package.read("extension/lq.tmLanguage.json"))
        subprocess.run(["node", "--check", "-"], input=package.read("extension/extension.js"), check=True, timeout=60)
    contributed = about["contributes"]
    paths = [about["main"], *(each["path"] for each in contributed["grammars"])]
    paths += [each["configuration"] for each in contributed["languages"]]
    assert {f"extension/{path.removeprefix('./')}" for path in paths} <= names
    assert {"[Content_Types].xml", "extension.vsixmanifest", "extension/LICENSE.txt"} <= names
    assert "extension/THIRD_PARTY_NOTICES.txt" in names and "devDependencies" not in about
    [language] = contributed["languages"]
    assert [kind.removeprefix(".") for kind in language["extensions"]] == grammar["fileTypes"]


@pytest.mark.parametrize("name", ["nowhere/x.vsix", "notes.txt", "taken.vsix"])
def test_a_path_that_cannot_be_written_is_a_sentence_and_nothing_is_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "taken.vsix").mkdir()
    command = ["npm", "run", "--silent", "package", "--", str(tmp_path / name)]
    done = subprocess.run(command, cwd=HERE, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and done.stderr.startswith(f"{tmp_path / name} cannot be written: ")
    assert done.stderr.endswith("name another file: npm run package -- FILE.vsix\n")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["notes.txt", "taken.vsix"]
    assert (tmp_path / "notes.txt").read_text() == "mine"
