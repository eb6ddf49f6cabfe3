"""The view: the project's names, its code as real files, and outputs of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.job.model import DataMount, Job, Target
from seatrial.runs.view import _fill, in_view


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    for name in (
        "train.py",
        "net/__init__.py",
        "net/deep.py",
        "net/weights.bin",
        "data/raw/a.txt",
        "data/old/b.txt",
        "processed/x.txt",
        ".env",
        ".seatrial/runs/x",
        "__pycache__/train.pyc",
    ):
        path = made / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return made


def fill(project: Path, *outputs: str, mounted: tuple[str, ...] = ()) -> Path:
    view = project.parent / "view"
    view.mkdir()
    _fill(view, project, project, outputs, ["train.py", "net/__init__.py", "net/deep.py"], mounted)
    return view


def test_what_is_read_is_the_projects_and_what_is_written_is_not(project: Path) -> None:
    view = fill(project, "processed", "data/new", "model.bin")
    assert (view / "data/raw/a.txt").read_text() == "data/raw/a.txt" and (view / "data/raw").is_symlink()
    assert not (view / "data").is_symlink() and (view / ".env").is_symlink()
    assert list((view / "processed").iterdir()) == [] and not (view / "data/new").exists()
    (view / "processed/y.txt").write_text("new")
    (view / "data/new").mkdir()
    (view / "model.bin").write_text("new")
    assert [path.name for path in (project / "processed").iterdir()] == ["x.txt"]
    assert not (project / "data/new").exists() and not (project / "model.bin").exists()
    assert not (view / ".seatrial").exists() and not (view / "__pycache__").exists()


def test_code_is_a_copy_so_that_its_own_path_leads_to_the_view(project: Path) -> None:
    view = fill(project, "processed")
    for name in ("train.py", "net/deep.py"):
        assert (view / name).resolve() == (view / name) and (view / name).read_text() == name
    assert (view / "net/weights.bin").is_symlink()


def test_an_output_in_a_folder_that_is_not_there_yet(project: Path) -> None:
    view = fill(project, "models/best/model.pt")
    assert (view / "models/best").is_dir() and not (project / "models").exists()


def test_a_place_for_what_is_mounted_is_not_a_link(project: Path) -> None:
    view = fill(project, "processed", mounted=("data/raw",))
    assert not (view / "data/raw").exists() and (view / "data/old").is_symlink()


def test_a_models_folder_among_the_outputs_is_the_views(project: Path) -> None:
    target = Target(kind="recipe", value="digits")
    for source, expected in (
        ("models", "view/models"),
        ("models/deep", "view/models/deep"),
        ("other", "project/other"),
    ):
        models = DataMount(source=project / source, read_only=False)
        job = Job(project=project, target=target, models=models, outputs=("models",))
        moved = in_view(job, project.parent / "view").models
        assert moved is not None and moved.source == project.parent / expected
