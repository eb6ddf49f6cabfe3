"""seatrial init: what it finds is a file that the loader reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes import load_job
from seatrial.errors import UsageError
from seatrial.planning.new_project import find_script, write_project_file
from tables import cases


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
    with pytest.raises(UsageError, match=r"No \.py file of that name here"):
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
