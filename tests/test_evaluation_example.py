"""The example of `lq eval` says what its page says, and costs nothing the second time."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from click.testing import CliRunner

from lmql_lite.apps.cli import lq as command

EXAMPLE = Path(__file__).parent.parent / "examples" / "17_evaluation"


def test_the_demo_model_has_four_of_eight_reviews_right_and_a_new_row_is_the_only_one_asked(tmp_path: Path) -> None:
    for name in ("sentiment.lq", "reviews.csv"):
        shutil.copy(EXAMPLE / name, name)
    (first,) = (line.strip() for line in (EXAMPLE / "README.md").read_text().splitlines() if " --cluster " in line)
    arguments = first.split()[1:]
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 0, done.output
    (folder,) = Path("runs").glob("sentiment-demo-*")
    report = json.loads((folder / "report.json").read_text())
    assert report["metrics"][0]["mean"] == 4 / 8 and report["attempts"] == 8
    with Path("reviews.csv").open("a") as file:
        file.write("r9,Tower,The view was great.,positive\n")
    CliRunner().invoke(command, arguments)
    report = json.loads((folder / "report.json").read_text())
    assert report["kept"] == 8 and report["attempts"] == 9
