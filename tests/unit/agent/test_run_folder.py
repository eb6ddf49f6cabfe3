"""The run's folder where nobody made it beforehand: a TrainJob's lies in the folder of models."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from agent_process import Agent
from seatrial.agent.plan import make_folder


def test_the_agent_makes_it_before_the_target_starts(tmp_path: Path) -> None:
    folder = tmp_path / "models" / ".seatrial" / "run-1"
    (tmp_path / "models").mkdir()
    script = f"open({str(folder / 'checkpoint.pt')!r}, 'w').write('weights')"
    agent = Agent(tmp_path, script, run_dir=str(folder))
    done = agent.run()
    assert done.returncode == 0, done.stderr
    assert (folder / "checkpoint.pt").read_text() == "weights"


def test_the_next_users_run_can_make_its_own_with_it(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models").chmod(0o2775)  # as a volume with an fsGroup has it
    make_folder(str(tmp_path / "models" / ".seatrial" / "run-1"))
    made = [tmp_path / "models" / ".seatrial", tmp_path / "models" / ".seatrial" / "run-1"]
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in made] == [0o2775, 0o2775]


def test_one_that_is_there_keeps_its_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir(mode=0o700)
    make_folder("run")
    make_folder("run/nodes/0")
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "run" / "nodes" / "0").stat().st_mode) == 0o700


def test_a_volume_that_may_not_be_written_reports_so(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("no folder")
    with pytest.raises(OSError, match="models"):
        make_folder(str(tmp_path / "models" / ".seatrial"))
