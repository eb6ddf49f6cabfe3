"""[tune] is written into the project's file, and nothing else of it changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fakes import load_job
from seatrial.errors import ConfigError, UsageError
from seatrial.job.model import Criteria, Job, Target
from seatrial.job.tables import Changes, Tuning
from seatrial.runs.jobs import tuning_job
from seatrial.system.project_files import parse_toml, save_table

KEPT = {"workers": 8, "persistent_workers": True, "precision": "bf16"}
OWN = """# my run
target = "train.py"   # the script
gpus = 1

[image]
slim = "none"         # not yet
"""


def test_it_is_added_to_a_file_whose_every_line_stays(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch")
    path = tmp_path / "seatrial.toml"
    path.write_text(OWN)
    assert save_table(tmp_path, "tune", KEPT, "measured today") == path
    assert path.read_text().startswith(OWN)
    job = load_job(tmp_path, {})
    assert job.tune.set_ones() == KEPT and job.tune.words == "persistent_workers, precision=bf16, workers=8"


def test_a_project_without_a_file_gets_one_and_pyproject_its_own_table(tmp_path: Path) -> None:
    assert save_table(tmp_path, "tune", KEPT, "x").name == "seatrial.toml"
    (tmp_path / "seatrial.toml").unlink()
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n\n[tool.seatrial]\ngpus = 2\n')
    path = save_table(tmp_path, "tune", KEPT, "x")
    found = parse_toml(path.read_text(), path)
    assert path.name == "pyproject.toml" and found["tool"]["seatrial"] == {"gpus": 2, "tune": KEPT}


@pytest.mark.parametrize("before", ["tune = { workers = 2 }\n", "tune.workers = 2\ngpus = 1\n"])
def test_a_form_that_cannot_be_edited_is_refused_and_stays(tmp_path: Path, before: str) -> None:
    path = tmp_path / "seatrial.toml"
    path.write_text(before)
    with pytest.raises(ConfigError, match=r"\[tune\]|tune"):
        save_table(tmp_path, "tune", KEPT, "x")
    assert path.read_text() == before


@pytest.mark.parametrize("name", ["seatrial.toml", "pyproject.toml"])
def test_a_symlink_that_a_script_left_in_its_place_is_not_written_through(tmp_path: Path, name: str) -> None:
    project, outside = tmp_path / "project", tmp_path / "outside.toml"
    project.mkdir()
    outside.write_text("[tool.seatrial]\ngpus = 1\n" if name == "pyproject.toml" else "gpus = 1\n")
    before = outside.read_text()
    (project / name).symlink_to(outside)
    with pytest.raises(ConfigError):
        save_table(project, "tune", KEPT, "measured today")
    (project / name).unlink()
    (project / name).symlink_to(tmp_path / "not there yet")
    save_table(project, "tune", KEPT, "measured today")
    assert outside.read_text() == before and not (tmp_path / "not there yet").exists()


# ------------------------------------------------------------------ the job


def job(**keys: Any) -> Job:
    fields: dict[str, Any] = {"project": Path("/p"), "target": Target(kind="script", value="train.py")}
    return Job(**{**fields, **keys})


def test_it_is_the_script_as_it_is_without_its_criteria_and_without_earlier_changes() -> None:
    made = tuning_job(job(tune=Changes(workers=4), criteria=Criteria(metrics={"acc": ">= 1"})), Tuning(steps=20))
    assert made.tuning is not None and made.tuning.steps == 20
    assert made.tune == Changes() and made.criteria.metrics == {} and not made.criteria.model_fields_set


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"target": Target(kind="recipe", value="mnist")}, "recipe"),
        ({"nodes": 2}, "one machine"),
        ({"no_hook": True}, "--no-hook"),
    ],
)
def test_what_cannot_be_tuned_is_refused_with_the_next_command(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        tuning_job(job(**keys), Tuning())
    assert (caught.value.run or "").startswith("seatrial tune")
