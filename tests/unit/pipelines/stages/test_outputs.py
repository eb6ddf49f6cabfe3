"""Outputs are put in place whole, on file systems with and without an exchanging rename."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from seatrial.errors import UntrustedPathError
from seatrial.pipelines.stages import outputs
from seatrial.pipelines.stages.outputs import discard, is_empty, place


@pytest.fixture(params=["exchange", "no exchange"])
def ground(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    if request.param == "no exchange":
        monkeypatch.setattr(outputs, "_renameat2", lambda *args: errno.EINVAL)
    view, project = tmp_path / "project/.seatrial/view", tmp_path / "project"
    view.mkdir(parents=True)
    return view, project


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("older", ["nothing", "folder", "empty folder", "file"])
@pytest.mark.parametrize("kind", ["folder", "file"])
def test_whatever_was_there_gives_way(ground: tuple[Path, Path], older: str, kind: str) -> None:
    view, project = ground
    write(view / ("a/out/x/new" if kind == "folder" else "a/out"), "new")
    if older == "folder":
        write(project / "a/out/x/old", "old")
    elif older == "empty folder":
        (project / "a/out").mkdir(parents=True)
    elif older == "file":
        write(project / "a/out", "old")
    place(view, project, "a/out")
    discard(view, "a/out")
    assert (project / "a/out/x/new" if kind == "folder" else project / "a/out").read_text() == "new"
    assert not (project / "a/out/x/old").exists() and not (view / "a/out").exists()
    assert [path.name for path in (project / "a").iterdir()] == ["out"]


def test_another_file_system_gets_a_copy_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second file system to write on")
    view = memory / f"seatrial-test-{os.getpid()}"
    write(view / "out/inner/new", "new")
    (view / "out/link").symlink_to("inner/new")
    try:
        write(tmp_path / "out/old", "old")
        place(view, tmp_path, "out")
        assert (tmp_path / "out/link").read_text() == "new" and (tmp_path / "out/link").readlink() == Path("inner/new")
        assert [path.name for path in tmp_path.iterdir()] == ["out"] and not (tmp_path / "out/old").exists()
    finally:
        discard(view, "out")
        view.rmdir()


def test_a_link_that_a_target_left_is_not_followed(ground: tuple[Path, Path], tmp_path: Path) -> None:
    view, project = ground
    write(tmp_path / "secret/key", "mine")
    (view / "out").symlink_to(tmp_path / "secret")
    with pytest.raises(UntrustedPathError, match="out is neither a file nor a folder"):
        is_empty(view, "out")
    (view / "above").symlink_to(tmp_path / "secret")
    with pytest.raises(UntrustedPathError, match="is a symlink, which seatrial does not follow"):
        place(view, project, "above/key")
    (project / "lead").symlink_to(tmp_path / "secret")
    write(view / "lead/key", "forged")
    with pytest.raises(UntrustedPathError, match="is a symlink"):
        place(view, project, "lead/key")
    assert (tmp_path / "secret/key").read_text() == "mine"


def test_what_counts_as_nothing_written(tmp_path: Path) -> None:
    (tmp_path / "empty/inner").mkdir(parents=True)
    write(tmp_path / "full/.hidden", "")
    write(tmp_path / "file", "")
    (tmp_path / "links").mkdir()
    (tmp_path / "links/one").symlink_to("../file")
    found = {name: is_empty(tmp_path, name) for name in ("nothing", "no/thing", "empty", "full", "file", "links")}
    assert found == {"nothing": True, "no/thing": True, "empty": True, "full": False, "file": False, "links": False}
