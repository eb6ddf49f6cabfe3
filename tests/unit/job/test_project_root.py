"""The project of a folder is the repository around it; the target starts in the folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fakes import load_job
from seatrial.errors import TargetError
from seatrial.images.plan import image_needs
from seatrial.job.model import Job
from seatrial.job.script import source_facts
from seatrial.planning.site import container_places, local_places, target_argv
from seatrial.system.project_files import matching, project_root


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a repository with a script in a folder, which imports what lies next to that folder."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    root = tmp_path / "home" / "repository"
    for folder in (".git", "tools", "lib", "data"):
        (root / folder).mkdir(parents=True)
    (root / "requirements.txt").write_text("einops==0.7.0\n")
    (root / "lib" / "nets.py").write_text("")
    (root / "tools" / "train.py").write_text(
        "import sys\nsys.path.append('../lib')\nimport einops, nets\nopen('../data/x')\n"
    )
    return root


def job_in(folder: Path, **flags: object) -> Job:
    named = {"target": "train.py", **flags} if "module" not in flags else flags
    return load_job(project_root(folder), named, cwd=folder)


@pytest.mark.parametrize(
    ("marks", "root"),
    [
        ((".git",), "."),
        (("seatrial.toml",), "."),
        (("setup.py",), "."),
        (("pyproject.toml",), "."),
        (("setup.py", "a/setup.cfg"), "a"),
        ((".git", "a/pyproject.toml"), "."),
        ((".git", "a/seatrial.toml"), "a"),
        ((".git", "a/.git"), "a"),
        (("requirements.txt",), "a/b"),
        ((), "a/b"),
    ],
)
def test_the_nearest_repository_is_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, marks: tuple[str, ...], root: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    (tmp_path / "a" / "b").mkdir(parents=True)
    for mark in marks:
        (tmp_path / mark).write_text("")
    assert project_root(tmp_path / "a" / "b") == (tmp_path / root).resolve()


def test_a_table_of_ours_in_pyproject_makes_a_folder_a_project(repository: Path) -> None:
    (repository / "tools" / "pyproject.toml").write_text('[tool.seatrial]\ngpus = "none"\n')
    assert project_root(repository / "tools") == repository / "tools"


def test_the_home_folder_is_nobodys_project(repository: Path) -> None:
    for above in (repository.parent, repository.parent.parent):
        (above / ".git").mkdir()
    (repository / ".git").rmdir()
    assert project_root(repository / "tools") == repository / "tools"
    assert project_root(repository.parent) == repository.parent


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to give a file away")
def test_a_file_of_another_user_makes_no_project(repository: Path) -> None:
    os.chown(repository / ".git", 12345, 12345)
    assert project_root(repository / "tools") == repository / "tools"
    for folder in (repository / ".git", repository / "tools"):  # the other user's own checkout
        os.chown(folder, 12345, 12345)
    assert project_root(repository / "tools") == repository


def test_a_script_starts_where_it_was_named(repository: Path) -> None:
    job = job_in(repository / "tools", args=["--data", "../data"])
    assert (job.project, job.workdir, job.target.value) == (repository, "tools", "tools/train.py")
    places = container_places(job, resumes=False)
    assert places.project == "/workspace/tools"
    assert target_argv(job.target, None, "python3", places)[0][1] == "train.py"
    assert local_places(job, repository, None).project == str(repository / "tools")


def needs_of(job: Job) -> tuple[str, set[str]]:
    needs = image_needs(job, source_facts(job))
    return needs.source, set(needs.requirements.lines)


def test_modules_and_lists_are_those_of_the_folder_and_of_the_repository(repository: Path) -> None:
    assert source_facts(job_in(repository / "tools")).imports == ("einops",)
    assert needs_of(job_in(repository / "tools")) == ("requirements.txt", {"einops==0.7.0"})
    (repository / "tools" / "pyproject.toml").write_text('[project]\nname = "t"\ndependencies = ["rich==13.0"]\n')
    job = job_in(repository / "tools")
    assert needs_of(job) == ("tools/pyproject.toml", {"rich==13.0", "einops==0.7.0"})


def test_a_list_of_another_name_in_the_folder_counts(repository: Path) -> None:
    (repository / "tools" / "requirement.txt").write_text("rich==13.0\n")
    for name in ("elsewhere/deep/stranger.py", "tools/src/own/__init__.py"):
        (repository / name).parent.mkdir(parents=True)
        (repository / name).write_text("")
    (repository / "tools" / "train.py").write_text("import einops, rich, stranger, own\n")
    job = job_in(repository / "tools")
    facts = source_facts(job)
    assert needs_of(job)[0] == "tools/requirement.txt"
    assert "own" not in facts.imports and facts.import_roots == ("tools/src",)


def test_a_module_is_found_from_the_folder(repository: Path) -> None:
    (repository / "tools" / "net").mkdir()
    (repository / "tools" / "net" / "train.py").write_text("import einops\n")
    job = job_in(repository / "tools", module="net.train")
    assert job.workdir == "tools"
    assert source_facts(job).imports == ("einops",)


def test_what_the_folder_has_not_starts_in_the_project_and_the_files_workdir_counts(repository: Path) -> None:
    job = job_in(repository / "lib", target="tools/train.py")
    assert (job.workdir, job.target.value) == (None, "tools/train.py")
    (repository / "seatrial.toml").write_text('target = "tools/train.py"\n')
    assert load_job(repository, {}, cwd=repository / "tools").workdir is None
    (repository / "seatrial.toml").write_text('workdir = "lib"\n')
    assert job_in(repository / "tools").folder == repository / "lib"


def test_similar_names_are_those_of_the_folder(repository: Path) -> None:
    with pytest.raises(TargetError, match=r"did you mean train\.py\?"):
        job_in(repository / "tools", target="trian.py")


def test_a_pattern_of_a_project_follows_no_link_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "x.py").touch()
    (tmp_path / "again").symlink_to(".")
    assert matching(tmp_path, "**/x.py", 100) == [tmp_path / "x.py"]
    assert [matching(tmp_path, each, 100) for each in (".", "/x", "x**")] == [[], [], [tmp_path / "x.py"]]
