"""Groups among runs in ``runs ls``."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from seatrial.cli import _main
from seatrial.compose.group import GroupStore, Member
from seatrial.compose.listing import as_json, listed
from seatrial.runs.store import RunStore, new_run_id
from seatrial.system.host import Host


def ended_run(store: RunStore, target: str, *, at: float) -> str:
    run = store.create(new_run_id(at), None)
    reported = {
        "target": target,
        "backend": "local",
        "gpus": 0,
        "exit_code": 0,
        "outcome": "exit code 0",
        "seconds": 2.0,
    }
    (run.folder / "summary.json").write_text(json.dumps(reported))
    return run.id


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    monkeypatch.chdir(tmp_path)
    return RunStore(tmp_path)


def test_members_stand_under_their_group_between_other_runs(
    project: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    now = time.time()
    older, own = ended_run(project, "old.py", at=now - 90), ended_run(project, "train.py", at=now - 50)
    groups = GroupStore(project)
    members = (
        Member("train", state="done", run=own, target="train.py"),
        Member("export", state="skipped", why="train failed", target="export.py"),
    )
    group = groups.create(members, name="churn")
    lines = listed(project, Host())
    assert [each.line.id for each in lines] == [group.id, own, "", older]
    assert [each.member for each in lines] == [None, "train", "export", None]
    assert [(each["id"], each["member"]) for each in as_json(lines, project)] == [(own, "train"), (older, None)]
    assert len(listed(project, Host(), limit=1)) == 3  # the group, whole
    assert _main(["runs", "ls"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert "churn" in out[1] and "compose: 2 members" in out[1]
    assert out[2].startswith("  2")
    assert out[3].endswith("skipped: train failed")


def test_a_group_whose_run_is_gone_is_still_listed(project: RunStore) -> None:
    GroupStore(project).create((Member("train", state="done", run="20260101-000000-gone"),))
    assert [each.line.status for each in listed(project, Host())] == ["done", "done"]
