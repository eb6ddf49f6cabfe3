"""seatrial init: a folder that is whole or not there, whose file the loader reads and whose own tests pass."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fakes import load_job
from seatrial.errors import UsageError
from seatrial.planning.new_project import find_script, new_project, write_project_file
from tables import cases


def test_what_is_made_is_a_project_that_asks_for_nothing(tmp_path: Path) -> None:
    written = new_project(tmp_path / "moons")
    there = {str(path.relative_to(tmp_path / "moons")) for path in (tmp_path / "moons").rglob("*") if path.is_file()}
    assert there == set(written) and {"train.py", "data.py", "tests/test_data.py", ".gitignore"} <= there
    job = load_job(tmp_path / "moons", {}, cwd=tmp_path)
    assert (job.target.value, job.criteria.metrics, job.asks) == ("train.py", {"accuracy": ">= 0.95"}, ())
    texts = [(tmp_path / "moons" / name).read_text() for name in written]
    assert not any("NAME" in text for text in texts) and any(text.startswith("# moons") for text in texts)
    assert list(tmp_path.iterdir()) == [tmp_path / "moons"]


def test_what_a_run_refuses_is_not_written_as_its_target(tmp_path: Path) -> None:
    (tmp_path / "lab.ipynb").write_text("{}")
    with pytest.raises(UsageError, match=r"lab\.ipynb is a notebook, not a script"):
        write_project_file(tmp_path, "lab.ipynb")
    assert not (tmp_path / "seatrial.toml").exists()


def test_an_empty_folder_is_filled_and_one_that_is_not_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "train.py" in new_project(tmp_path / "empty")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("mine")
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name, printed in (("full", "not empty"), ("file", "There is a file"), ("link", "There is a file")):
        with pytest.raises(UsageError, match=printed):
            new_project(tmp_path / name)
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.tex"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file", "full", "link"]


@pytest.mark.parametrize("name", ["..", ".hidden", "with space", "-x", "x" * 64])
def test_a_name_that_no_image_can_have_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="does not name a new project"):
        new_project(tmp_path / name)


@pytest.mark.torch
def test_its_own_tests_pass_and_a_test_of_them_can_fail(tmp_path: Path) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch")
    new_project(tmp_path / "moons")

    def tested() -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.run(argv, cwd=tmp_path / "moons", env=env, capture_output=True, text=True, timeout=300)

    passed = tested()
    assert passed.returncode == 0 and "9 passed" in passed.stdout, passed.stdout
    loader = tmp_path / "moons" / "data.py"
    loader.write_text(loader.read_text().replace("shuffle=True", "shuffle=False"))
    failed = tested()
    assert failed.returncode == 1 and "each_epoch_another_order" in failed.stdout


# -------------------------------------------------------- init in a project


def test_what_is_found_is_written_and_reads_back(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\ntorch.distributed.init_process_group()\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").touch()
    text = write_project_file(tmp_path).read_text()
    assert "framework: torch" in text
    job = load_job(tmp_path, {})
    assert (job.target.value, str(job.gpus), job.data is not None) == ("train.py", "all", True)
    with pytest.raises(UsageError, match="already exists"):
        write_project_file(tmp_path)


def test_which_script_is_requested_where_it_is_not_plain(tmp_path: Path) -> None:
    (tmp_path / "setup.py").touch()
    with pytest.raises(UsageError, match="No training script found"):
        write_project_file(tmp_path)
    for name in ("src/lab/train.py", "tests/train.py", "src/trainer.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(UsageError, match=r"There are src/lab/train\.py, src/trainer\.py") as caught:
        write_project_file(tmp_path)
    assert caught.value.run == "seatrial init src/lab/train.py"
    (tmp_path / "src" / "trainer.py").unlink()
    assert 'target = "src/lab/train.py"' in write_project_file(tmp_path).read_text()
    (tmp_path / "seatrial.toml").unlink()
    (tmp_path / "a.py").touch()
    (tmp_path / "b.py").touch()
    with pytest.raises(UsageError, match=r"There are a\.py, b\.py") as caught:
        write_project_file(tmp_path)
    assert caught.value.run == "seatrial init a.py"
    assert 'target = "b.py"' in write_project_file(tmp_path, "b.py").read_text()


@cases("name", "run")
def test_without_a_script_that_is_named_as_one_what_is_here_is_reported(tmp_path: Path, name: str, run: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).touch()
    with pytest.raises(UsageError, match=r"^Which script trains\? ") as caught:
        find_script(tmp_path)
    assert caught.value.run == run
