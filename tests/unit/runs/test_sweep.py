"""Sweeps: how a setting reaches the target, and the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.errors import UsageError
from seatrial.job.model import Job, Target
from seatrial.reports import sweep_page
from seatrial.runs.sweep import Result, parse_setting, variants
from seatrial.system.names import Names


def _job(folder: Path, text: str) -> Job:
    (folder / "train.py").write_text(text)
    return Job(project=folder, target=Target(kind="script", value="train.py"), name="base")


def test_a_flag_of_the_script(tmp_path: Path) -> None:
    made = variants(_job(tmp_path, 'p.add_argument("--batch_size")'), [parse_setting("batch_size=64,128")])
    assert [job.target.args for _, job in made] == [("--batch_size", "64"), ("--batch_size", "128")]
    assert [job.name for _, job in made] == ["base-batch_size-64", "base-batch_size-128"]


def test_a_variable_of_the_script(tmp_path: Path) -> None:
    [(_, job)] = variants(_job(tmp_path, 'os.environ["LR"]'), [parse_setting("lr=0.1")])
    assert job.env == {"LR": "0.1"}


def test_recipes_know_their_settings(tmp_path: Path) -> None:
    job = Job(project=tmp_path, target=Target(kind="recipe", value="digits"))
    made = variants(job, [parse_setting("batch_size=32"), parse_setting("mixed_precision=true,false")])
    assert [job.target.args for _, job in made] == [
        ("--batch", "32", "--precision", "bf16"),
        ("--batch", "32", "--precision", "fp32"),
    ]


@pytest.mark.parametrize("text", ["batch", "=1", "a=", "a=1,,2", "a=1,1", "1a=2"])
def test_settings_that_do_not_parse(text: str) -> None:
    with pytest.raises(UsageError):
        parse_setting(text)


def test_a_script_that_cannot_be_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no way to set lr"):
        variants(_job(tmp_path, "print(1)"), [parse_setting("lr=1")])


def test_the_page_escapes_and_marks_the_best(tmp_path: Path) -> None:
    results = [
        Result({"lr": "<1>"}, exit_code=0, outcome="Finished", seconds=2.0, metrics={"loss": 0.5}),
        Result({"lr": "2"}, exit_code=0, outcome="Finished", seconds=1.0, metrics={"loss": 0.7}),
        Result({"lr": "3"}, exit_code=1, outcome="failed <b>", seconds=0.1),
    ]
    assert sweep_page.best(results, next(c for c in sweep_page.columns(results) if c[0] == "loss")) is results[0]
    page = sweep_page.write(tmp_path / "s", "a <title>", results, Names()).read_text()
    assert "<1>" not in page and "failed <b>" not in page and "a <title>" not in page
    assert page.count('class="n best"') == 2 and "http://" not in page
