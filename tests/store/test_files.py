"""Whole files are replaced whole, and a lock file holds one process at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmql_lite.store.files import lock_file, replace_file


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_replaced_by_all_parts(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "entry"
    path.write_bytes(b"old")
    assert replace_file(path, [b"new ", memoryview(b"content"), bytearray(b"!")], durable=durable) == 12
    assert path.read_bytes() == b"new content!"
    assert os.listdir(tmp_path) == ["entry"]


def test_where_a_part_cannot_be_made_the_old_file_stays(tmp_path: Path) -> None:
    def parts() -> Iterator[bytes]:
        yield b"half of"
        raise RuntimeError("out of parts")

    path = tmp_path / "entry"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError, match="out of parts"):
        replace_file(path, parts())
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["entry"]


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    script = f"""
import sys, time
from pathlib import Path
from lmql_lite.store.files import lock_file
with lock_file(Path({str(tmp_path / ".lock")!r}), 5.0) as held:
    print(held, flush=True)
    time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None and other.stdout.readline() == "True\n"
            with lock_file(tmp_path / ".lock", 0.0) as held:
                assert not held
        finally:
            other.kill()
        other.wait(10)
    with lock_file(tmp_path / ".lock", 1.0) as held:
        assert held
