"""What a person gets who installs the package: from a wheel, from an sdist, and editable.

Works without a network: the new environments borrow the dependencies of the one that runs the tests.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

import lmql_lite
from tests.apps.playground_server import Page

ROOT = Path(__file__).parent.parent
MEBIBYTE = 2**20
QUERY = "\"Say 'this is a test':[TEXT]\" where len(TEXT) < 20"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="needs a checkout of the project"),
]


def attempt(*command: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command that sees no PYTHONPATH and no pip settings of this process's caller, and these variables."""
    hidden = ("PYTHON", "PIP_", "LMQL_LITE_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment | {"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"} | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    """What it prints on stdout."""
    done = attempt(*command, cwd=cwd, **variables)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def copied(folder: Path, *, bundle: bool = True) -> Path:
    """The checkout as somebody has it who has built nothing, but for the page's bundle if it is there."""
    left_out = (".git", ".venv*", "node_modules", ".*_cache", "__pycache__", "*-shm", "*-wal")
    left_out += () if bundle else ("dist",)
    return Path(shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*left_out)))


def without_npm(folder: Path) -> dict[str, str]:
    """Variables under which no command is found but by its whole path."""
    folder.mkdir(exist_ok=True)
    return {"PATH": str(folder)}


def build(kind: str, checkout: Path, into: Path, **variables: str) -> Path:
    """A `--wheel` or an `--sdist`."""
    command = (sys.executable, "-m", "build", "--no-isolation", kind, "--outdir", into, checkout)
    run(*command, cwd=checkout, **variables)
    return next(into.iterdir())


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
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    return build("--sdist", copied(folder / "checkout"), folder / "made")


@pytest.fixture(scope="module")
def wheels(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A wheel built from the checkout, and one built from an sdist of it where there is no npm."""
    folder = tmp_path_factory.mktemp("wheels")
    with tarfile.open(sdist) as archive:
        careful = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Debian 12 has none yet
        archive.extractall(folder / "unpacked", **careful)
    unpacked = next((folder / "unpacked").iterdir())
    return {
        "checkout": build("--wheel", copied(folder / "copy"), folder / "checkout"),
        "sdist": build("--wheel", unpacked, folder / "sdist", **without_npm(folder / "nothing")),
    }


@pytest.fixture(scope="module", params=["checkout", "sdist"])
def environment(
    request: pytest.FixtureRequest, wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    return installed(tmp_path_factory.mktemp(f"from_{request.param}") / "venv", wheels[request.param])


def test_a_wheel_holds_all_it_needs_and_nothing_else(wheels: dict[str, Path]) -> None:
    names = {home: sorted(zipfile.ZipFile(path).namelist()) for home, path in wheels.items()}
    assert names["checkout"] == names["sdist"]
    wheel = set(names["checkout"])
    assert {"lmql_lite/grammar/lq.lark", "lmql_lite/grammar/tables.json", "lmql_lite/py.typed"} <= wheel
    assert {f"lmql_lite/demo/model/{name}" for name in ("config.json", "tokenizer.json", "model.safetensors")} <= wheel
    assert any(name.endswith("licenses/LICENSE") for name in wheel)
    assert {name.split("/")[0].split("-")[0] for name in wheel} == {"lmql_lite"}
    assert not [name for name in wheel if "__pycache__" in name or "_cache/" in name]
    assert [name for name in wheel if name.endswith(".tokens")] == ["lmql_lite/examples/13_recorded/joke.tokens"]
    assert wheels["checkout"].stat().st_size < 12 * MEBIBYTE


def test_an_sdist_holds_the_sources(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"pyproject.toml", "README.md", "LICENSE", "grammar/lq.lark", "demo/model/config.json"} <= names
    assert {"tests/test_install.py", "examples/01_packing_list.lq", "demo/train.py"} <= names
    assert {"playground/package-lock.json", "playground/build.mjs", "playground/src/main.js"} <= names
    assert not [name for name in names if name.startswith((".venv", ".git/", "tests/.")) or "_cache/" in name]
    assert not [name for name in names if "node_modules/" in name]


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


def test_a_wheel_has_the_tables_of_its_own_grammars(environment: Environment, tmp_path: Path) -> None:
    script = "from lmql_lite.lang.grammar import OPTIONS, stored; print({'digest', *OPTIONS} == set(stored()))"
    assert run(environment.python, "-c", script, cwd=tmp_path) == "True\n"


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


# The playground's page ----------------------------------------------------------------------------------------------

BUNDLE = {f"lmql_lite/playground/dist/{name}" for name in ("index.html", "THIRD_PARTY_NOTICES.txt", "src/main.js")}
PLAIN = {f"lmql_lite/playground/{name}" for name in ("index.html", "style.css", "view.css", "src/main.js")}

needs_bundle = pytest.mark.skipif(
    not (ROOT / "hatch_build.py").is_file()
    or not runpy.run_path(str(ROOT / "hatch_build.py"))["is_built"](ROOT / "playground"),
    reason="needs the page's bundle, newer than its sources: npm ci && npm run build, in playground/",
)
needs_npm = pytest.mark.skipif(shutil.which("npm") is None, reason="needs npm (Debian: apt-get install npm)")


@contextmanager
def served(environment: Environment, folder: Path) -> Iterator[tuple[Page, str]]:
    """`lq playground` where there is no Node, and what it says on stderr by then."""
    process = subprocess.Popen(
        [environment.lq, "playground", "--no-open"],
        cwd=folder,
        env={**without_npm(folder / "nothing"), "HOME": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        line, said = process.stdout.readline(), process.stderr.readline()
        found = re.fullmatch(r"Playground ready: (http://127\.0\.0\.1:\d+)/#token=(\S+)\n", line)
        assert found is not None, (line, process.communicate(timeout=30))
        page = Page(found[1], found[2])
        yield page, said
        page.http.close()
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def page_works(page: Page) -> str:
    """It is served with all that it refers to, and a query runs. Gives its HTML."""
    html = page.http.get("/")
    assert html.status_code == 200 and "<title>" in html.text
    parts = re.findall(r"""(?:src|href)="([^"#:]+)\"""", html.text)
    assert {Path(part).suffix for part in parts} >= {".js", ".css"}
    assert {part: page.http.get(part).status_code for part in parts} == dict.fromkeys(parts, 200)
    assert page.run(QUERY)[-1]["type"] == "done"
    examples = [each["name"] for each in page.http.get("/api/examples").json()["examples"]]
    assert len(examples) > 5
    return html.text


@needs_bundle
def test_an_installed_wheel_serves_the_whole_page_without_node(
    environment: Environment, wheels: dict[str, Path], tmp_path: Path
) -> None:
    names = set(zipfile.ZipFile(wheels["checkout"]).namelist())
    assert names >= BUNDLE and not names & PLAIN
    with served(environment, tmp_path) as (page, said):
        assert said == "note: Ctrl-C stops the server\n"
        page_works(page)
        about = page.http.get("/api/about").json()
        assert (about["bundled"], about["build"]) == (True, None)
        notices = page.http.get("/THIRD_PARTY_NOTICES.txt").text
        assert "@codemirror/view" in notices and notices.count("MIT") > 5


def test_a_wheel_that_was_built_without_npm_serves_a_page_that_says_so(tmp_path: Path) -> None:
    checkout, nothing = copied(tmp_path / "copy", bundle=False), without_npm(tmp_path / "nothing")
    wheel = build("--wheel", checkout, tmp_path / "made", **nothing)
    names = set(zipfile.ZipFile(wheel).namelist())
    assert names >= PLAIN and not names & BUNDLE
    assert not [name for name in names if name.startswith("lmql_lite/playground/") and "node_modules" in name]
    with served(installed(tmp_path / "venv", wheel), tmp_path) as (page, said):
        page_works(page)
        build_line = page.http.get("/api/about").json()["build"]
        assert "npm" in build_line and "\n" not in build_line
        assert said == f"note: this is the plain page; {build_line}\n"


def test_a_build_runs_no_npm_and_writes_nothing_into_the_checkout(tmp_path: Path) -> None:
    checkout = copied(tmp_path / "copy", bundle=False)
    commands = tmp_path / "commands"
    commands.mkdir()
    npm = commands / "npm"
    npm.write_text(f"#!/bin/sh\ntouch {tmp_path}/npm-was-run\n", "utf-8")
    npm.chmod(0o755)

    def files() -> set[Path]:
        return {file for file in checkout.rglob("*") if "__pycache__" not in file.parts}  # Python's own, of the hook

    before = files()
    for kind in ("--wheel", "--sdist"):
        build(kind, checkout, tmp_path / kind, PATH=str(commands))
    assert files() == before
    assert not (tmp_path / "npm-was-run").exists()


def test_a_release_without_npm_is_refused_with_a_sentence(tmp_path: Path) -> None:
    checkout = copied(tmp_path / "copy")  # a bundle that is there may be an old one
    for kind in ("--wheel", "--sdist"):
        command = (sys.executable, "-m", "build", "--no-isolation", kind, "--outdir", tmp_path / "made", checkout)
        done = attempt(*command, cwd=tmp_path, LMQL_LITE_RELEASE="1", **without_npm(tmp_path / "nothing"))
        assert done.returncode != 0
        assert "a release needs the bundle of the page: there is no npm" in done.stdout + done.stderr
    assert not list((tmp_path / "made").glob("*"))


@needs_npm
def test_a_release_makes_its_bundle_from_locked_packages_and_always_the_same(tmp_path: Path) -> None:
    """Two builds in two places, the second one by the hook itself."""
    lock = json.loads((ROOT / "playground" / "package-lock.json").read_text("utf-8"))
    packages = {name: package for name, package in lock["packages"].items() if name}
    assert packages and not [name for name in packages if not packages[name]["integrity"].startswith("sha512-")]
    asked = json.loads((ROOT / "playground" / "package.json").read_text("utf-8"))
    versions = {**asked["dependencies"], **asked["devDependencies"]}
    assert versions == {name: packages[f"node_modules/{name}"]["version"] for name in versions}

    def contents(dist: Path) -> dict[str, str]:
        files = (path for path in sorted(dist.rglob("*")) if path.is_file())
        return {str(path.relative_to(dist)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    first, second = (copied(tmp_path / name, bundle=False) for name in ("one", "in another place"))
    fetched = attempt("npm", "ci", "--no-audit", "--no-fund", "--fetch-retries=1", cwd=first / "playground")
    if fetched.returncode:
        pytest.skip(f"the page's packages cannot be fetched: {fetched.stderr[-300:]}")
    run("npm", "run", "build", cwd=first / "playground")
    build("--wheel", second, tmp_path / "made", LMQL_LITE_RELEASE="1")
    assert contents(first / "playground" / "dist") == contents(second / "playground" / "dist") != {}
