"""Mounts: no link of a script leads outside; private folders are masked in every mount that shows them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from seatrial.backends.containers.mounts import held_sources, real_source, shielded
from seatrial.errors import UntrustedPathError, UsageError
from seatrial.job.in_container import CONTAINER_PLAN
from seatrial.job.plan import ContainerPlan, Mount


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project" / "data").mkdir(parents=True)
    (tmp_path / "secrets").mkdir()
    return tmp_path / "project"


def real(source: Path, project: Path) -> Path:
    return real_source(source, project, "--data", state=project.parent / "state")


@pytest.mark.parametrize("way", ["link", "folder/link", "link/below", "data/../link", "chain"])
def test_a_link_out_of_the_project_is_refused(project: Path, tmp_path: Path, way: str) -> None:
    (project / "folder").mkdir()
    (tmp_path / "secrets" / "below").mkdir()
    for name in ("link", "folder/link"):
        (project / name).symlink_to(tmp_path / "secrets")
    (project / "chain").symlink_to("folder/link")
    with pytest.raises(UsageError, match="points outside the project") as refused:
        real(project / way, project)
    assert str(tmp_path / "secrets") in refused.value.message


@pytest.mark.parametrize("way", ["state", "state/projects", "link-to-state"])
def test_the_state_folder_is_nobodys_data(project: Path, tmp_path: Path, way: str) -> None:
    (tmp_path / "state" / "projects").mkdir(parents=True)
    (tmp_path / "link-to-state").symlink_to("state")
    with pytest.raises(UsageError, match="state folder"):
        real(tmp_path / way, project)


def opened(folder: Path, *mounts: Mount) -> dict[str, list[int] | None]:
    """Return the devices and inodes that the agent gets for these mounts."""
    record = Mount(source=folder / "agent.json", target=CONTAINER_PLAN)
    record.source.write_text('{"agent": {}}')
    plan = ContainerPlan(name="x", hostname=None, command=(), user=None, workdir="/", mounts=(*mounts, record))
    with held_sources(plan):
        reported = json.loads(record.source.read_bytes())
    assert reported["agent"] == {}
    return dict(reported["mounts"])


def test_a_ring_of_links_is_no_traceback(project: Path) -> None:
    (project / "ring").symlink_to("ring")
    (project / "there").symlink_to("back")
    (project / "back").symlink_to("there")
    for name in ("ring", "there", "ring/below"):
        source = real(project / name, project)
        with pytest.raises(UntrustedPathError):
            opened(project.parent, Mount(source=source, target="/data"))


def test_what_became_a_link_or_went_after_the_plan_is_refused_at_the_start(project: Path, tmp_path: Path) -> None:
    (project / "a" / "b").mkdir(parents=True)
    mounts = [
        Mount(source=project / "data", target="/data"),
        Mount(source=project / "a" / "b", target="/b"),
        Mount(source=tmp_path / "secrets", target="/d"),
    ]
    seen = opened(project.parent, *mounts)
    for mount in mounts:
        status = mount.source.stat()
        assert seen[mount.target] == [status.st_dev, status.st_ino]
    (project / "data").rename(project / "moved")
    (project / "data").symlink_to(tmp_path / "secrets")
    with pytest.raises(UntrustedPathError, match="is a symlink"):
        opened(project.parent, mounts[0])
    (project / "data").unlink()
    with pytest.raises(UntrustedPathError, match="No such file"):
        opened(project.parent, mounts[0])
    (project / "a").rename(project / "moved again")
    (project / "a").symlink_to(tmp_path)
    with pytest.raises(UntrustedPathError, match="is a symlink"):
        opened(project.parent, mounts[1])


def test_a_folder_above_the_project_that_became_a_link_is_refused(project: Path, tmp_path: Path) -> None:
    moved = project.rename(tmp_path / "moved")
    project.symlink_to(moved)
    with pytest.raises(UntrustedPathError, match="is a symlink"):
        opened(project.parent, Mount(source=project / "data", target="/data"))


def test_pipes_and_devices_are_held_and_not_opened(project: Path) -> None:
    os.mkfifo(project / "pipe")
    mounts = [Mount(source=project / "pipe", target="/p"), Mount(source=Path("/dev/null"), target="/n")]
    assert set(opened(project.parent, *mounts)) == {"/p", "/n"}


def test_a_project_that_became_a_link_since_it_was_named_gives_no_source(project: Path, tmp_path: Path) -> None:
    (tmp_path / "secrets" / "data").mkdir()
    project.rename(tmp_path / "moved")
    project.symlink_to(tmp_path / "secrets")
    with pytest.raises(UsageError, match="points outside the project"):
        real(project / "data", project)


def test_a_link_out_of_the_project_is_found_by_another_path_to_the_project_too(project: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(project)
    (project / "out").symlink_to(tmp_path / "secrets")
    assert real(tmp_path / "alias" / "data", project) == project / "data"
    with pytest.raises(UsageError, match="points outside the project"):
        real(tmp_path / "alias" / "out", project)


def covered(mounts: list[tuple[Path, str]], hidden: list[Path]) -> list[str]:
    _, masks = shielded([Mount(source=source, target=target) for source, target in mounts], hidden)
    return [mask.target for mask in masks]


def pinned(mounts: list[Mount], hidden: list[Path]) -> dict[str, Path]:
    """Target → source of what is mounted on top."""
    return {mount.target: mount.source for mount in shielded(mounts, hidden)[0] if mount not in mounts}


RUNS = Path("/home/ada/mnist/.seatrial/runs/1/outputs")


@pytest.mark.parametrize(
    ("mounts", "hidden", "masks"),
    [
        (
            [("/home/ada/mnist", "/workspace"), ("/home", "/data"), ("/", "/mnt/host"), ("/srv", "/srv")],
            "/home/ada/mnist/.seatrial",
            ["/data/ada/mnist/.seatrial", "/mnt/host/home/ada/mnist/.seatrial", "/workspace/.seatrial"],
        ),
        ([(RUNS, "/seatrial/run")], "/home/ada/mnist/.seatrial", []),  # a part of it is mounted on purpose
        ([(RUNS, "/seatrial/run")], RUNS, []),
        ([("/home/ada/mnist2", "/a")], "/home/ada/mnist/.seatrial", []),
    ],
)
def test_it_is_covered_in_every_mount_that_shows_it(mounts: list[Any], hidden: Any, masks: list[str]) -> None:
    assert covered([(Path(source), target) for source, target in mounts], [Path(hidden)]) == masks


def test_a_link_does_not_lead_past_it(tmp_path: Path) -> None:
    state, home = tmp_path / "state", tmp_path / "home"
    state.mkdir()
    home.mkdir()
    (tmp_path / "link").symlink_to(tmp_path)
    assert covered([(tmp_path / "link", "/data")], [state]) == ["/data/state"]
    (home / "state").symlink_to(state)  # dangles in a container that is given home alone
    assert covered([(home, "/data")], [home / "state"]) == []


HOME = Path("/nowhere/ada")


def test_every_folder_between_a_mount_and_a_mask_is_pinned() -> None:
    hidden = [HOME / ".local/state/seatrial", HOME / "work/nested/.seatrial", HOME / ".seatrial"]
    assert pinned([Mount(source=HOME, target="/workspace")], hidden) == {
        "/workspace/.local": HOME / ".local",
        "/workspace/.local/state": HOME / ".local/state",
        "/workspace/work": HOME / "work",
        "/workspace/work/nested": HOME / "work/nested",
    }


def test_a_mount_that_cannot_be_written_needs_no_pin_and_no_mask_over_nothing() -> None:
    mount = Mount(source=HOME, target="/data", read_only=True)
    assert shielded([mount], [HOME / ".local/state/seatrial"]) == ((mount,), ())


def test_what_another_mount_or_mask_covers_gets_neither() -> None:
    mounts = [Mount(source=HOME, target="/workspace"), Mount(source=Path("/srv"), target="/workspace/.local")]
    assert shielded(mounts, [HOME / ".local/state/seatrial"]) == (tuple(mounts), ())
    state = HOME / "state"
    assert covered([(HOME, "/workspace")], [state, state / "projects", state / "x" / ".seatrial"]) == [
        "/workspace/state"
    ]


def test_pins_are_mounted_before_what_lies_in_them() -> None:
    mounts = [Mount(source=HOME, target="/workspace"), Mount(source=Path("/srv"), target="/workspace/.local/share/x")]
    placed, _ = shielded(mounts, [HOME / ".local/state/seatrial"])
    depths = [mount.target.count("/") for mount in placed]
    assert depths == sorted(depths)
