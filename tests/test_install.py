"""What a person gets who installs the package: from a wheel, from an sdist, and editable.

Works without a network: the new environments borrow the dependencies of the one that runs the tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

import lmql_lite

ROOT = Path(__file__).parent.parent
MEBIBYTE = 2**20
QUERY = "\"Say 'this is a test':[TEXT]\" where len(TEXT) < 20"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="needs a checkout of the project"),
]


def run(*command: str | Path, cwd: Path) -> str:
    """What a command prints on stdout. It sees no PYTHONPATH and no pip settings of this process's caller."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_"))}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment | {"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@dataclass(frozen=True, slots=True)
class Environment:
    """A new virtual environment, with the package installed and nothing else of its own."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def lq(self) -> Path:
        return self.folder / "bin" / "lq"


def installed(folder: Path, *what: str | Path) -> Environment:
    """pip of this environment or of the system installs into the new one, which needs no pip of its own."""
    pip: list[str] = []
    if find_spec("pip") is not None:
        pip = [sys.executable, "-m", "pip"]
    elif found := shutil.which("pip3") or shutil.which("pip"):
        pip = [found]
    else:
        pytest.skip("needs pip, in this environment or on the path")
    venv.create(folder, with_pip=False, symlinks=True)
    environment = Environment(folder)
    site = Path(
        run(environment.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder)[:-1]
    )
    borrowed = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    (site / "borrowed.pth").write_text("\n".join([*borrowed, ""]), "utf-8")
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--force-reinstall"]
    run(*pip, "--python", environment.python, "install", *options, *what, cwd=folder)
    return environment


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A wheel built from the checkout, and one built from an sdist of it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder / "checkout", ROOT, cwd=folder)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "sdist", ROOT, cwd=folder)
    return {home: next((folder / home).glob("*.whl")) for home in ("checkout", "sdist")}


@pytest.fixture(scope="module", params=["checkout", "sdist"])
def environment(
    request: pytest.FixtureRequest, wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    return installed(tmp_path_factory.mktemp(f"from_{request.param}") / "venv", wheels[request.param])


def test_a_wheel_holds_all_it_needs_and_nothing_else(wheels: dict[str, Path]) -> None:
    names = {home: sorted(zipfile.ZipFile(path).namelist()) for home, path in wheels.items()}
    assert names["checkout"] == names["sdist"]
    wheel = set(names["checkout"])
    assert {"lmql_lite/grammar/lq.lark", "lmql_lite/grammar/prompt.lark", "lmql_lite/py.typed"} <= wheel
    assert {f"lmql_lite/demo/model/{name}" for name in ("config.json", "tokenizer.json", "model.safetensors")} <= wheel
    assert any(name.endswith("licenses/LICENSE") for name in wheel)
    assert {name.split("/")[0].split("-")[0] for name in wheel} == {"lmql_lite"}
    assert not [name for name in wheel if "__pycache__" in name or "_cache/" in name or name.endswith(".tokens")]
    assert wheels["checkout"].stat().st_size < 12 * MEBIBYTE


def test_an_sdist_holds_the_sources(wheels: dict[str, Path]) -> None:
    archive = next(wheels["sdist"].parent.glob("*.tar.gz"))
    with tarfile.open(archive) as sdist:
        names = {name.split("/", 1)[1] for name in sdist.getnames() if "/" in name}
    assert {"pyproject.toml", "README.md", "LICENSE", "grammar/lq.lark", "demo/model/config.json"} <= names
    assert {"tests/test_install.py", "examples/01_packing_list.lq", "demo/train.py"} <= names
    assert not [name for name in names if name.startswith((".venv", ".git/", "tests/.")) or "_cache/" in name]


def test_it_runs_anywhere(environment: Environment, tmp_path: Path) -> None:
    script = f"import lmql_lite as lq; print(lq.__file__); print(lq.run_sync({QUERY!r}, model='demo').prompt.strip())"
    file, _, prompt = run(environment.python, "-c", script, cwd=tmp_path).partition("\n")
    assert Path(file).is_relative_to(environment.folder)
    assert prompt.startswith("Say 'this is a test':")
    assert run(environment.lq, "--version", cwd=tmp_path) == f"lq {lmql_lite.__version__}\n"
    query = tmp_path / "query.lq"
    query.write_text(QUERY, "utf-8")
    assert run(environment.lq, "run", query, cwd=tmp_path).strip() == prompt.strip()
    example = ROOT / "examples" / "01_packing_list.lq"
    assert run(environment.lq, "run", example, cwd=tmp_path) == run(environment.lq, "run", example, cwd=tmp_path) != ""


def test_a_strangers_folder_beside_the_package_is_not_read(environment: Environment, tmp_path: Path) -> None:
    """In site-packages and in the working directory other people's `grammar/` may stand."""
    script = "import lmql_lite.assets as assets; print(assets.asset('grammar', 'lq.lark'))"
    (tmp_path / "grammar").mkdir()
    (tmp_path / "grammar" / "lq.lark").write_text("start: /no/", "utf-8")
    found = Path(run(environment.python, "-c", script, cwd=tmp_path).strip())
    assert found.is_relative_to(environment.folder) and found.parent.parent.name == "lmql_lite"


def test_an_editable_install_reads_the_checkout(tmp_path: Path) -> None:
    pytest.importorskip("editables", reason="hatchling makes editable installs with editables, which is not installed")
    environment = installed(tmp_path / "venv", "--editable", ROOT)
    script = (
        "import lmql_lite as lq; print(lq.__file__); from lmql_lite.assets import asset; "
        "print(asset('grammar', 'lq.lark')); print(asset('demo/model', 'config.json')); "
        f"print(lq.run_sync({QUERY!r}, model='demo').prompt)"
    )
    lines = run(environment.python, "-c", script, cwd=tmp_path).splitlines()
    homes = ("lmql_lite/__init__.py", "grammar/lq.lark", "demo/model/config.json")
    assert [Path(line).resolve() for line in lines[:3]] == [(ROOT / home).resolve() for home in homes]
    assert lines[3].startswith("Say 'this is a test':")
    assert run(environment.lq, "--version", cwd=tmp_path) == f"lq {lmql_lite.__version__}\n"
