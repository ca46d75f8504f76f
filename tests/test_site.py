"""The documentation as a site: it builds without a warning, and a link that leads nowhere is one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("material", reason="needs mkdocs-material: pip install --group docs")
ROOT = Path(__file__).parent.parent


def build(top: Path, into: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(top / "mkdocs.yml"), "-d", str(into)]
    return subprocess.run(command, cwd=top, capture_output=True, text=True, timeout=120, check=False)


def test_it_builds_without_a_warning_and_has_every_page(tmp_path: Path) -> None:
    done = build(ROOT, tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    pages = {page.parent.name for page in tmp_path.glob("*/index.html")}
    assert pages >= {page.stem for page in (ROOT / "docs").glob("*.md")}
    index = (tmp_path / "index.html").read_text("utf-8")
    assert 'src="playground.png"' in index and 'href="tutorial/"' in index


@pytest.mark.parametrize("link", ["nowhere.md", "../nowhere.py", "language.md#nowhere"])
def test_a_link_that_leads_nowhere_fails_the_build(link: str, tmp_path: Path) -> None:
    top = tmp_path / "checkout"
    for name in ("mkdocs.yml", "README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md"):
        (top / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, top / name)
    for name in ("docs", "benchmarks", "playground/PROTOCOL.md", "editors/vscode/README.md", "examples", "tests"):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).symlink_to(ROOT / name) if name != "docs" else shutil.copytree(ROOT / name, top / name)
    with (top / "docs" / "tutorial.md").open("a", encoding="utf-8") as page:
        page.write(f"\n[there]({link})\n")
    done = build(top, tmp_path / "site")
    assert done.returncode != 0 and "nowhere" in done.stdout + done.stderr
