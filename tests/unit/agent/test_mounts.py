"""Mounts are compared with what the host opened for them, before anything else happens in the container."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent_process import Agent
from seatrial.agent import plan


def identity(path: Path) -> list[int]:
    found = path.lstat()
    return [found.st_dev, found.st_ino]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "agent.pyz"
    path.touch()
    return path


def compared(archive: Path, *targets: Path, **others: "list[int] | None") -> "tuple[str | None, str | None]":
    wanted = {str(archive): identity(archive), **{str(target): identity(target) for target in targets}}
    return plan.compare_mounts({**wanted, **others}, str(archive))


def test_mounts_as_the_host_opened_them_pass_and_another_folder_is_named(tmp_path: Path, archive: Path) -> None:
    inner = tmp_path / "project" / "models"
    inner.mkdir(parents=True)
    assert compared(archive, tmp_path / "project", inner) == (None, None)
    for wrong in (str(inner), str(tmp_path / "gone")):
        assert compared(archive, **{wrong: identity(tmp_path)}) == (wrong, None)


def test_a_link_is_followed_above_a_target_alone(tmp_path: Path, archive: Path) -> None:
    """One of the image leads to the target; one in the project, or in the target's place, could lead anywhere."""
    (tmp_path / "project" / "real" / "models").mkdir(parents=True)
    (tmp_path / "project" / "link").symlink_to("real")
    target, right = str(tmp_path / "project" / "link" / "models"), identity(tmp_path / "project" / "real" / "models")
    assert compared(archive, tmp_path / "project", **{target: right}) == (target, None)
    (tmp_path / "run" / "models").mkdir(parents=True)
    var = tmp_path / "var"
    var.symlink_to("run")
    assert compared(archive, **{str(var / "models"): identity(tmp_path / "run" / "models")}) == (None, None)
    assert compared(archive, **{str(var): identity(tmp_path / "run")}) == (str(var), None)


def test_a_mask_must_be_a_mount_of_its_own_and_another_kernel_is_reported(tmp_path: Path, archive: Path) -> None:
    (tmp_path / "masked").mkdir()
    assert compared(archive, **{"/proc": None}) == (None, None)
    assert compared(archive, **{str(tmp_path / "masked"): None}) == (str(tmp_path / "masked"), None)
    elsewhere = {str(archive): [1, 2], str(tmp_path): [3, 4]}
    assert plan.compare_mounts(elsewhere, str(archive)) == (None, "the engine runs in a virtual machine")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reaches every folder")
def test_a_target_that_this_user_cannot_reach_is_reported(tmp_path: Path, archive: Path) -> None:
    (tmp_path / "closed" / "models").mkdir(parents=True)
    (tmp_path / "closed").chmod(0)
    target = str(tmp_path / "closed" / "models")
    assert compared(archive, **{target: [1, 2]}) == (None, f"the container's user cannot reach {target}")


def test_the_target_of_a_swapped_mount_never_starts_and_no_mount_is_written(tmp_path: Path) -> None:
    agent = Agent(tmp_path, "open('started', 'w')", evidence_dir=None)
    wanted = {str(agent.archive): identity(agent.archive), str(agent.run_dir): identity(tmp_path)}
    (agent.record / "agent.json").write_text(json.dumps({"agent": agent.plan, "mounts": wanted}))
    ended = agent.run()
    assert ended.returncode == 5 and str(agent.run_dir).encode() in ended.stderr
    assert b"mount-swapped" in ended.stdout and b"agent.started" not in ended.stdout
    assert list(agent.run_dir.iterdir()) == [] and not (tmp_path / "started").exists()


@pytest.mark.parametrize(("shown", "code", "printed"), [("same", 7, "ran bc"), ("other", 125, "was checked")])
def test_a_service_runs_its_own_command_on_the_mounts_that_were_checked(
    tmp_path: Path, shown: str, code: int, printed: str
) -> None:
    for name in ("same", "other"):
        (tmp_path / name).mkdir()
    orders = tmp_path / "agent.json"
    orders.write_text(json.dumps({"mounts": {str(tmp_path / "same"): identity(tmp_path / shown)}, "env": {"B": "c"}}))
    words = [sys.executable, "-m", "seatrial.agent", str(orders), "sh", "-c", "echo ran $A$B; env; exit 7"]
    env = {"A": "b", "PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(words, env=env, capture_output=True, text=True)
    assert ended.returncode == code and printed in ended.stdout + ended.stderr and "LC_CTYPE" not in ended.stdout
