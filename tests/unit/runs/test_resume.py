"""Going on from an earlier run: its checkpoints, and nothing that its target put in their place."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fakes import a_plan
from seatrial.errors import UntrustedPathError
from seatrial.job.model import Target
from seatrial.runs.resume import has_checkpoint, resumed, run_to_resume
from seatrial.runs.run import Run
from seatrial.runs.store import RunStore

ID = "20261120-231501-k3f9"


@pytest.fixture
def run(store: RunStore) -> Run:
    return store.create(ID, None)


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "id_rsa").touch()
    return tmp_path / "secrets"


def test_its_outputs_are_mounted_and_its_checkpoints_found_in_them(run: Run) -> None:
    found = resumed(run)
    assert (found.source, found.target, found.read_only) == (run.outputs, "/seatrial/resume", True)
    assert run.checkpoints == run.outputs / "checkpoints"
    assert not has_checkpoint(run)
    (run.checkpoints / "step-1.pt").touch()
    assert has_checkpoint(run)


def test_last_is_the_last_that_trains_and_a_run_by_its_id_is_that_one(store: RunStore, run: Run) -> None:
    requested, begun = (store.create(f"20261120-23150{n}-k3f9", None) for n in (2, 3))
    for each, target in (
        (run, Target(kind="script", value="train.py")),
        (requested, Target(kind="recipe", value="predict")),
    ):
        plan = a_plan()
        each.save_plan(plan.changed(job=plan.job.changed(target=target)))
    assert run_to_resume(store, "last").id == run.id and store.find("last").id == begun.id
    assert run_to_resume(store, requested.id).id == requested.id


@pytest.mark.parametrize("level", [".seatrial", "runs", ID, "outputs", "checkpoints"])
def test_a_link_at_any_level_is_not_handed_over(run: Run, secrets: Path, level: str) -> None:
    path = run.checkpoints
    while path.name != level:
        path = path.parent
    shutil.rmtree(path)
    path.symlink_to(secrets)
    with pytest.raises(UntrustedPathError, match="is a symlink"):
        resumed(run)
    assert not has_checkpoint(run)
    assert [file.name for file in secrets.iterdir()] == ["id_rsa"]
