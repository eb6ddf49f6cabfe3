"""Private folders are masked wherever a mount would show them."""

from pathlib import Path
from typing import Any

import pytest

from seatrial.backends.containers.mounts import shielded
from seatrial.job.plan import Mount


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
