"""Data files as rows: formats, ids, and what is wrong with them in one sentence."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import lmql_lite as lq
from lmql_lite.data.rows import read_rows

ROWS = [{"id": "a", "text": "x,\ny"}, {"id": "b", "text": "ü"}]


def values(path: Path) -> list[dict[str, object]]:
    return [dict(row.values) for row in read_rows(path)]


def test_text_formats_hold_the_same_rows(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text("\ufeff" + "\n\n".join(map(json.dumps, ROWS)), "utf-8")
    (tmp_path / "d.json").write_text(json.dumps(ROWS))
    (tmp_path / "d.csv").write_text('\ufeffid,text\r\na,"x,\ny"\r\nb,ü\r\n', "utf-8", newline="")
    (tmp_path / "d.tsv").write_text('id\ttext\na\t"x,\ny"\nb\tü\n', "utf-8")
    assert all(values(tmp_path / f"d.{suffix}") == ROWS for suffix in ("jsonl", "json", "csv", "tsv"))
    assert [row.line for row in read_rows(tmp_path / "d.csv")] == [2, 4]


def test_parquet(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    parquet.write_table(arrow.Table.from_pylist(ROWS), tmp_path / "d.parquet")
    assert values(tmp_path / "d.parquet") == ROWS and [row.line for row in read_rows(tmp_path / "d.parquet")] == [1, 2]


def test_surplus_and_missing_cells_are_a_problem_of_their_row(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("id,text\na,x,y\nb\nc,z\n")
    first, second, third = read_rows(tmp_path / "d.csv")
    assert first.problem == "line 2 has 3 cells, and the header has 2"
    assert second.problem == "line 3 has 1 cells, and the header has 2"
    assert not third.problem and third.values == {"id": "c", "text": "z"}


def test_a_field_of_a_megabyte_is_read(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text(f"id,text\na,{'x' * 2**20}\n")
    assert len(str(values(tmp_path / "d.csv")[0]["text"])) == 2**20


def test_equal_ids_are_refused_with_both_lines_and_equal_rows_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("id,text\na,x\nb,y\na,z\n")
    with pytest.raises(lq.InputError, match=r"lines 2 and 4 have the same id, 'a'"):
        values(tmp_path / "d.csv")
    (tmp_path / "e.csv").write_text("text\nx\ny\nx\n")
    first, second, third = (row.id for row in read_rows(tmp_path / "e.csv"))
    assert third == f"{first}#2" and second not in (first, third)


def test_a_line_that_is_not_json_is_a_problem_of_its_row(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text('{"a": 1}\n{"a":\n[1]\n')
    assert [bool(row.problem) for row in read_rows(tmp_path / "d.jsonl")] == [False, True, True]


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("d.txt", "", "unknown format"),
        ("d.json", "3", "not a list of objects"),
        ("d.csv", "a,a\n1,2\n", "two columns called 'a'"),
        ("gone.csv", None, "cannot be read: No such file"),
    ],
)
def test_files_that_are_no_data_are_refused_in_a_sentence(
    tmp_path: Path, name: str, text: str | None, sentence: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(lq.InputError, match=sentence):
        values(tmp_path / name)


@pytest.mark.parametrize("name", ["D.CSV", "d.Csv", "d.JSONL", "d.jsonl.GZ", "d.CSV.gz"])
def test_an_ending_in_capitals_is_that_ending(tmp_path: Path, name: str) -> None:
    text = "id,text\na,x\n" if "csv" in name.lower() else '{"id": "a", "text": "x"}\n'
    (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.lower().endswith("gz") else text.encode())
    assert values(tmp_path / name) == [{"id": "a", "text": "x"}]
