"""Tasks of lm-evaluation-harness as queries, and what is refused because it needs the harness."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lmql_lite.apps.cli import lq as command
from lmql_lite.data.data_file import FileRow, read_rows
from lmql_lite.data.harness_task import harness_task
from lmql_lite.data.run_folder import attempts_in

pytest.importorskip("yaml")
CHOICE = """
task: rooms
dataset_path: json
dataset_kwargs: {data_files: {test: rooms.jsonl}}
test_split: test
output_type: multiple_choice
description: "Reviews.\\n"
doc_to_text: "{{review}} It was"
doc_to_choice: "{{[good, 'bad']}}"
doc_to_target: label
metric_list: [{metric: acc}, {metric: acc_norm, aggregation: mean, higher_is_better: true}]
"""
WRITE = """
task: writes
dataset_path: json
dataset_kwargs: {data_files: rooms.jsonl}
output_type: generate_until
doc_to_text: review
doc_to_target: "{{good}}"
generation_kwargs: {until: ["\\n", "."], max_gen_toks: 8, do_sample: false, temperature: 0.0}
"""


FIRST = "fewshot_config: {sampler: first_n}"


@pytest.fixture(autouse=True)
def files() -> None:
    Path("choice.yaml").write_text(CHOICE)
    Path("write.yaml").write_text(WRITE)
    rows = [{"review": f"Room {n}.", "good": "good\u00e9", "label": n % 2} for n in range(6)]
    Path("rooms.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def lq(*arguments: str) -> Result:
    return CliRunner().invoke(command, ["eval", "--from", "lm-eval", *arguments])


def test_a_multiple_choice_scores_the_options_after_the_prompt() -> None:
    assert lq("choice.yaml", "-o", "r").exit_code == 0
    records = list(attempts_in(Path("r")))
    assert len(records) == 6
    for record in records:
        assert record["columns"]["task_prompt"] == f"Reviews.\nRoom {record['line'] - 1}. It was"
        assert record["value"]["options"] == [" good\u00e9", " bad"] and record["target"] == (record["line"] - 1) % 2
        logprobs, right = record["value"]["logprobs"], record["target"]
        assert record["scores"]["acc"][0] == (logprobs[right] > logprobs[1 - right])
        per_character = [logprobs[0] / 5, logprobs[1] / 3]  # the harness counts no delimiter
        assert record["scores"]["acc_norm"][0] == (per_character[right] > per_character[1 - right])


def test_a_generated_answer_ends_before_the_first_stop() -> None:
    assert lq("write.yaml", "-o", "w").exit_code == 0
    for record in attempts_in(Path("w")):
        answer = record["variables"]["ANSWER"]
        assert "\n" not in answer and "." not in answer and record["target"] == "good\u00e9"
        assert record["usage"]["completion_tokens"] <= 8


def test_samples_are_exported_as_the_harness_writes_them() -> None:
    lq("choice.yaml", "-o", "r")
    assert CliRunner().invoke(command, ["eval", "export", "r", "--as", "lm-eval", "-o", "s.jsonl"]).exit_code == 0
    samples = [json.loads(line) for line in Path("s.jsonl").read_text("utf-8").splitlines()]
    assert [each["doc_id"] for each in samples] == [0, 1, 2, 3, 4, 5]
    first = samples[0]
    assert first["doc"] == {"review": "Room 0.", "good": "good\u00e9", "label": 0}
    assert first["arguments"]["gen_args_1"] == {"arg_0": "Reviews.\nRoom 0. It was", "arg_1": " bad"}
    assert [len(first["resps"]), first["metrics"], first["target"]] == [2, ["acc", "acc_norm"], 0]
    assert CliRunner().invoke(command, ["eval", "export", "r", "--as", "lm-eval", "-o", "s.jsonl"]).exit_code == 2


def test_hashes_of_samples_are_those_of_the_harness() -> None:
    Path("choice.yaml").write_text(CHOICE.replace("\"{{[good, 'bad']}}\"", '["good", "bad"]'))
    Path("rooms.jsonl").write_text(
        json.dumps({"review": "The bed was lovely and the staff was lovely, day 0.", "label": 1})
    )
    lq("choice.yaml", "-o", "r")
    CliRunner().invoke(command, ["eval", "export", "r", "--as", "lm-eval", "-o", "s.jsonl"])
    (sample,) = map(json.loads, Path("s.jsonl").read_text().splitlines())
    # what lm-eval 0.4.13 wrote for this document
    assert sample["doc_hash"] == "1b9746002ecb980d55808417e1be4e4273084b677df3e738d64ce10168fafdc4"
    assert sample["target_hash"] == "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"


def test_a_table_is_exported_as_parquet() -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    lq("write.yaml", "-o", "w")
    for name in ("w.parquet", "w.csv"):
        kind = name.partition(".")[2]
        assert CliRunner().invoke(command, ["eval", "export", "w", "--as", kind, "-o", name]).exit_code == 0
    rows = parquet.read_table("w.parquet").to_pylist()
    answers = {record["id"]: record["variables"]["ANSWER"] for record in attempts_in(Path("w"))}
    assert {row["id"]: row["answer"] for row in rows} == answers and rows[0]["exact"] in (0.0, 1.0)
    assert len(Path("w.csv").read_text("utf-8").splitlines()) == 7


def prompts() -> list[str]:
    task = harness_task(Path("choice.yaml"))
    rows = [task.prepare(row) for row in read_rows(task.data)]
    return [row.problem or row.values["task_prompt"] for row in rows]


def test_the_first_examples_of_a_split_stand_before_each_prompt_as_the_harness_writes_them() -> None:
    Path("shots.jsonl").write_text('{"review": "\\u00dc.", "label": 1}\n{"review": "R", "label": 0}\n')
    task = CHOICE.replace("{test: rooms.jsonl}", "{train: shots.jsonl, test: rooms.jsonl}")
    task = task.replace("\"{{[good, 'bad']}}\"", '["good", "bad"]') + f"num_fewshot: 2\nfewshot_split: train\n{FIRST}\n"
    Path("choice.yaml").write_text(task)
    # as lm-eval 0.4.13: description, then question, delimiter, answer, delimiter
    assert prompts()[0] == "Reviews.\n\u00dc. It was bad\n\nR It was good\n\nRoom 0. It was"
    delimiters = 'fewshot_delimiter: "\\n#\\n"\ntarget_delimiter: ": "\n'
    Path("choice.yaml").write_text(task + delimiters)
    assert prompts()[5] == "Reviews.\n\u00dc. It was: bad\n#\nR It was: good\n#\nRoom 5. It was"
    own = 'fewshot_config: {sampler: first_n, samples: [{review: S, label: 1}], doc_to_text: "E {{review}}"}\n'
    Path("choice.yaml").write_text(
        task.replace(FIRST, own).replace("fewshot_split: train", "").replace("num_fewshot: 2", "num_fewshot: 1")
    )
    assert prompts()[0] == "Reviews.\nE S bad\n\nRoom 0. It was"


@pytest.mark.parametrize(
    ("target", "value", "shown"),
    [
        ('"{{label}}"', 2, "4"),  # a template: the harness reads digits as an index, also where an option is spelled so
        ("label", 2, "4"),
        ("label", "2", "2"),  # a column of texts: the option
        ('"{{label}}"', "2", "4"),
    ],
)
def test_an_example_shows_the_option_of_an_index_that_is_spelled_like_another_option(
    target: str, value: object, shown: str
) -> None:
    row = {"review": "1 + 1", "label": value, "options": ["2", "3", "4", "5"]}
    Path("rooms.jsonl").write_text(json.dumps(row) + "\n" + json.dumps({**row, "review": "2 + 2"}) + "\n")
    task = CHOICE.replace("\"{{[good, 'bad']}}\"", "options").replace(
        "doc_to_target: label", f"doc_to_target: {target}"
    )
    Path("choice.yaml").write_text(task + f"num_fewshot: 1\nfewshot_split: test\n{FIRST}\n")
    assert prompts()[1] == f"Reviews.\n1 + 1 It was {shown}\n\n2 + 2 It was"
    (prepared, _) = map(harness_task(Path("choice.yaml")).prepare, read_rows(Path("rooms.jsonl")))
    assert prepared.values["task_choices"][prepared.values["task_target"]] == shown, "the score agrees"


def test_a_row_is_none_of_its_own_examples_where_both_are_of_one_split() -> None:
    choices = CHOICE.replace("\"{{[good, 'bad']}}\"", '["good", "bad"]')
    Path("choice.yaml").write_text(choices + f"num_fewshot: 2\nfewshot_split: test\n{FIRST}\n")
    found = prompts()
    assert found[0] == "Reviews.\nRoom 1. It was bad\n\nRoom 2. It was good\n\nRoom 0. It was"
    assert found[1] == "Reviews.\nRoom 0. It was good\n\nRoom 2. It was good\n\nRoom 1. It was"
    assert found[5] == "Reviews.\nRoom 0. It was good\n\nRoom 1. It was bad\n\nRoom 5. It was"
    Path("choice.yaml").write_text(choices + f"num_fewshot: 6\nfewshot_split: test\n{FIRST}\n")
    assert prompts()[0] == "the task cannot read this row: 6 examples are needed, and its split has 5 others"
    assert lq("choice.yaml", "-o", "r", "--limit", "1").exit_code == 8, "every row failed"


def test_an_option_that_is_the_name_of_a_column_is_that_text() -> None:
    Path("choice.yaml").write_text(CHOICE.replace("\"{{[good, 'bad']}}\"", '["good", "bad"]'))
    task = harness_task(Path("choice.yaml"))
    (row, *_) = map(task.prepare, read_rows(task.data))
    assert row.values["task_options"] == [" good", " bad"]


def test_a_row_that_a_template_cannot_read_is_an_error_of_that_row() -> None:
    row = harness_task(Path("choice.yaml")).prepare(FileRow(1, "a", {"good": "x", "label": 1}))
    assert row.problem == "the task cannot read this row: 'review' is undefined"


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("multiple_choice", "loglikelihood_rolling", "output_type 'loglikelihood_rolling' needs lm-evaluation-harness"),
        ("dataset_path: json", "dataset_path: ai2_arc", "the data set 'ai2_arc' is not a local file"),
        ("task: rooms", "task: rooms\nnum_fewshot: 5", "only lm-evaluation-harness can draw few-shot examples"),
        ("task: rooms", f"task: rooms\nnum_fewshot: 7\n{FIRST}", "num_fewshot is 7, and there are 6 examples"),
        ("task: rooms", "task: rooms\nfewshot_config: {gen_prefix: a}", "fewshot_config.gen_prefix needs lm-eval"),
        ("task: rooms", "task: rooms\nprocess_docs: !function utils.f", "cannot be read without lm-evaluation-harness"),
        ("task: rooms", "task: rooms\nfilter_list: []", "'filter_list' needs lm-evaluation-harness"),
        ("{metric: acc}", "{metric: mcc}", '{"metric": "mcc"} needs lm-evaluation-harness'),
        ("test: rooms", "train: rooms", "dataset_kwargs names no file for the split 'test'"),
        ("doc_to_target: label", "", "has no doc_to_target"),
    ],
)
def test_what_needs_the_harness_is_refused_in_a_sentence(old: str, new: str, sentence: str) -> None:
    Path("choice.yaml").write_text(CHOICE.replace(old, new))
    done = lq("choice.yaml", "-o", "r")
    assert done.exit_code == 2 and sentence in done.output and not Path("r").exists()
