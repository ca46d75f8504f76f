"""Types as callers have them: mypy --strict and pyright over an installed wheel."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping, Set
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.test_install import Environment, attempt, build, copied, installed, run, without_npm
from tests.test_readme import PAGES, fences

TYPED = Path(__file__).parent / "typed"
UNTYPED = ("torch", "transformers")
"""Packages that the types of ours do not need, and that take a minute to read."""

pytestmark = pytest.mark.slow


@dataclass(frozen=True, slots=True)
class Checked:
    """An environment with the package, a folder with files that use it, and what each checker calls wrong in them."""

    environment: Environment
    folder: Path
    wrong: Mapping[str, Set[str]]
    """Places as FILE:LINE."""

    def wrong_in(self, *prefixes: str) -> dict[str, set[str]]:
        return {
            checker: {place for place in places if place.startswith(prefixes)} for checker, places in self.wrong.items()
        }


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Checked:
    pytest.importorskip("mypy")
    pytest.importorskip("pyright")
    above = tmp_path_factory.mktemp("typed")
    if attempt(sys.executable, "-m", "pyright", "--version", cwd=above).returncode:
        pytest.skip("pyright cannot fetch its program: it needs npm")
    wheel = build("--wheel", copied(above / "checkout"), above / "made", **without_npm(above / "nothing"))
    environment = installed(above / "environment", wheel)
    folder = Path(shutil.copytree(TYPED, above / "use"))
    skipped = "".join(f"[mypy-{name}.*]\nfollow_imports = skip\n" for name in UNTYPED)
    (folder / "mypy.ini").write_text(f"[mypy]\nstrict = true\n{skipped}", "utf-8")
    for page in PAGES:
        for number, text in enumerate(fences("python", page.read_text("utf-8"))):
            if any(re.search(rf"^(import|from) {name}\b", text, re.M) and find_spec(name) is None for name in UNTYPED):
                continue
            (folder / f"page_{page.stem.replace('-', '_')}_{number}.py").write_text(text, "utf-8")
    files = sorted(file.name for file in folder.glob("*.py"))
    wrong = {}
    for checker, option in (("mypy", "--python-executable"), ("pyright", "--pythonpath")):
        done = attempt(sys.executable, "-m", checker, option, environment.python, *files, cwd=folder)
        assert done.returncode == 1, f"{done.stdout}\n{done.stderr}"
        lines = re.findall(r"([^/\s]+\.py):(\d+)(?::\d+)?(?: -|:) error: ", done.stdout)
        wrong[checker] = {f"{file}:{line}" for file, line in lines}
    return Checked(environment, folder, wrong)


def test_a_typed_use_is_clean_in_both_checkers_and_runs(checked: Checked) -> None:
    assert checked.wrong_in("well_used") == {"mypy": set(), "pyright": set()}
    run(checked.environment.python, "well_used.py", cwd=checked.folder)


def test_wrong_arguments_are_errors_in_both_checkers(checked: Checked) -> None:
    lines = (TYPED / "ill_used.py").read_text("utf-8").splitlines()
    wrong = {f"ill_used.py:{number}" for number, line in enumerate(lines, 1) if line.endswith("# wrong")}
    assert len(wrong) > 10
    assert checked.wrong_in("ill_used") == {"mypy": wrong, "pyright": wrong}


def test_the_python_of_readme_and_pages_is_clean_in_both_checkers(checked: Checked) -> None:
    assert len(list(checked.folder.glob("page_*.py"))) > 3
    assert checked.wrong_in("page_") == {"mypy": set(), "pyright": set()}
