"""The state folder: the user's own, also where another user has prepared one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from seatrial.errors import DiskError
from seatrial.system.host import Host


@pytest.fixture(autouse=True)
def last_resort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where /var/tmp would be used, in a folder of the test's."""
    place = tmp_path / "var-tmp" / f"seatrial-{os.getuid()}"
    real = Host._state_candidates
    monkeypatch.setattr(
        Host, "_state_candidates", lambda self: [place if str(at).startswith("/var/tmp/") else at for at in real(self)]
    )
    return place


def test_the_first_that_is_named(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path / "home")}
    assert Host(environ).state_folder == tmp_path / "home" / ".local" / "state" / "seatrial"
    environ["XDG_STATE_HOME"] = str(tmp_path / "xdg")
    assert Host(environ).state_folder == tmp_path / "xdg" / "seatrial"
    environ["SEATRIAL_STATE"] = str(tmp_path / "chosen")
    assert Host(environ).state_folder == tmp_path / "chosen"


@pytest.mark.parametrize("environ", [{}, {"HOME": ""}, {"HOME": "relative"}, {"XDG_STATE_HOME": "relative"}])
def test_without_a_home_there_is_a_last_resort(environ: dict[str, str], last_resort: Path) -> None:
    assert Host(environ).state_folder == last_resort


def test_a_home_that_cannot_be_written_is_passed_over(tmp_path: Path, last_resort: Path) -> None:
    (tmp_path / "file").touch()
    assert Host({"HOME": str(tmp_path / "file")}).state_folder == last_resort
    assert Host({"HOME": "/proc/1"}).state_folder == last_resort


@pytest.mark.parametrize("kind", ["file", "dangling", "link"])
def test_a_place_that_was_chosen_and_is_none_is_an_error_and_not_replaced(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "place"
    (tmp_path / "elsewhere").mkdir()
    {
        "file": place.touch,
        "dangling": lambda: place.symlink_to(tmp_path / "nowhere"),
        "link": lambda: place.symlink_to(tmp_path / "elsewhere"),
    }[kind]()
    with pytest.raises(DiskError, match="Cannot use the state folder") as refused:
        _ = Host({"SEATRIAL_STATE": str(place), "HOME": str(tmp_path)}).state_folder
    assert "export SEATRIAL_STATE=" in (refused.value.run or "")
    assert not (tmp_path / "nowhere").exists() and list((tmp_path / "elsewhere").iterdir()) == []


def test_a_folder_that_another_user_has_prepared_is_not_used(last_resort: Path) -> None:
    """/var/tmp is everybody's: who makes seatrial-1000 there first would own user 1000's plans."""
    if os.getuid() != 0:
        pytest.skip("only root can make another user's folder")
    last_resort.mkdir(parents=True, mode=0o777)
    os.chown(last_resort, 1001, 1001)
    with pytest.raises(DiskError, match="belongs to another user"):
        _ = Host({}).state_folder


def test_a_folder_that_others_could_write_is_shut(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s").chmod(0o777)
    assert Host({"SEATRIAL_STATE": str(tmp_path / "s")}).state_folder.stat().st_mode & 0o777 == 0o755


def test_folders_of_another_environment_are_its_own_too(tmp_path: Path) -> None:
    """A shell without SEATRIAL_STATE, or a cron job without HOME, would read them."""
    host = Host({"SEATRIAL_STATE": str(tmp_path / "state"), "HOME": str(tmp_path / "home")})
    (tmp_path / "home").mkdir()
    own = host.own_folders
    assert {tmp_path / "state", tmp_path / "home/.local/state/seatrial", tmp_path / "home/.cache/seatrial"} <= {*own}


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_another_users_folders_keep_nobody_from_having_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Without systemd's folder, another user can make the folders in shared places first."""
    places = [tmp_path / "shm", tmp_path / "tmp"]
    for place in places:
        (place / "theirs").mkdir(parents=True)
        squatted = place / f"seatrial-{os.getuid()}"
        squatted.symlink_to("theirs") if kind == "link" else squatted.write_text("")
    monkeypatch.setattr(Host, "temporary_folders", tuple(places))
    host = Host({"SEATRIAL_STATE": str(tmp_path / "state")})
    assert host.runtime_folder == host.state_folder / "runtime"
    assert host.runtime_folder.stat().st_mode & 0o777 == 0o700 and not [*places[0].glob("theirs/*")]
