"""Private folders are masked wherever a mount would show them."""

from pathlib import Path

from seatrial.backends.containers.mounts import masks
from seatrial.job.plan import Mount


def covered(mounts: list[tuple[Path, str]], hidden: list[Path]) -> list[str]:
    return [mask.target for mask in masks([Mount(source=source, target=target) for source, target in mounts], hidden)]


def test_it_is_covered_in_every_mount_that_shows_it() -> None:
    project = Path("/home/ada/mnist")
    mounts = [(project, "/workspace"), (Path("/home"), "/data"), (Path("/"), "/mnt/host"), (Path("/srv"), "/srv")]
    assert covered(mounts, [project / ".seatrial"]) == [
        "/data/ada/mnist/.seatrial",
        "/mnt/host/home/ada/mnist/.seatrial",
        "/workspace/.seatrial",
    ]


def test_what_is_itself_mounted_is_meant_and_what_lies_around_is_not_touched() -> None:
    run = Path("/home/ada/mnist/.seatrial/runs/1/outputs")
    assert covered([(run, "/seatrial/run")], [Path("/home/ada/mnist/.seatrial")]) == []
    assert covered([(run, "/seatrial/run")], [run]) == []
    assert covered([(Path("/home/ada/mnist2"), "/a")], [Path("/home/ada/mnist/.seatrial")]) == []


def test_a_link_does_not_lead_past_it(tmp_path: Path) -> None:
    state, home = tmp_path / "state", tmp_path / "home"
    state.mkdir()
    home.mkdir()
    (tmp_path / "link").symlink_to(tmp_path)
    assert covered([(tmp_path / "link", "/data")], [state]) == ["/data/state"]
    (home / "state").symlink_to(state)  # dangles in a container that is given home alone
    assert covered([(home, "/data")], [home / "state"]) == []
