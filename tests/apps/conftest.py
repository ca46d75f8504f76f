"""A shell in which `lq` runs in this process, in a folder of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from lmql_lite.apps.cli import main


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


class Shell:
    """Runs `lq` in this process, inside a folder of its own."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys

    def write(self, name: str, text: str | bytes) -> str:
        data = text.encode() if isinstance(text, str) else text
        (self.folder / name).write_bytes(data)
        return name

    def __call__(self, *arguments: str) -> Ended:
        code = 0
        try:
            main(list(arguments))
        except SystemExit as ended:
            code = int(ended.code or 0)
        captured = self._capsys.readouterr()
        assert "Traceback" not in captured.err + captured.out
        return Ended(code, captured.out, captured.err)


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    monkeypatch.chdir(tmp_path)
    return Shell(tmp_path, capsys)
