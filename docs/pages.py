"""Hook of MkDocs: pages from elsewhere in the checkout, and links to them and to files that are not pages."""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import dirname, join, normpath, relpath
from typing import Any

from mkdocs.structure.files import File

TOP = Path(__file__).parent.parent
ELSEWHERE = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "measurements.md",
    "playground/PROTOCOL.md": "protocol.md",
    "editors/vscode/README.md": "vscode.md",
    "examples/13_recorded/README.md": "recorded-example.md",
}
"""Pages of the site by their files in the checkout."""
HOME = {page: file for file, page in ELSEWHERE.items()}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Any, config: Any) -> Any:
    for file, page in ELSEWHERE.items():
        files.append(File.generated(config, page, abs_src_path=str(TOP / file)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    here = page.file.src_uri
    home = HOME.get(here, f"docs/{here}")

    def rewritten(link: re.Match[str]) -> str:
        picture, text, target = link.groups()
        path, mark, anchor = target.partition("#")
        if "://" in target or not path:
            return link[0]
        file = normpath(join(dirname(home), path))
        there = ELSEWHERE.get(file, file.removeprefix("docs/") if file.startswith("docs/") else None)
        if there is None:  # a file of the checkout: its name, without a link
            assert (TOP / file).exists(), f"{home}: {target} leads nowhere"
            return text
        return f"{picture}[{text}]({relpath(there, dirname(here) or '.')}{mark}{anchor})"

    return LINK.sub(rewritten, markdown)
