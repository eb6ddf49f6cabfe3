"""Results in folders that end with the container: which count, where they go, and what is not copied."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from seatrial.agent import saved_files
from seatrial.agent.saved_files import keep
from seatrial.events import FilesOutside


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """What ends with the container, and the run's folder."""
    for name in ("unkept", "run"):
        (tmp_path / name).mkdir()
    return tmp_path / "unkept", tmp_path / "run"


def kept(folders: tuple[Path, Path], started: float = 0.0, limit_s: float = 60.0) -> FilesOutside | None:
    return keep([str(folders[0])], str(folders[1]), started, limit_s)


def names(files: list[dict[str, object]]) -> list[str]:
    return sorted(Path(str(file["path"])).name for file in files)


def test_only_results_count(folders: tuple[Path, Path]) -> None:
    unkept, run = folders
    made = [
        "m.pt",
        "a.npy",
        "t.csv",
        "model",
        "saved/variables.data-00000-of-00001",
        "run.log",
        "tmpabcd1234/best.ckpt",
    ]
    noise = [
        "x.lock",
        "k.cubin",
        "main.cpp",
        ".hidden/m.pt",
        "__pycache__/m.npy",
        "torchinductor_me/k.json",
        "tmpabcd1234/x.json",
    ]
    for name in (*made, *noise):
        (unkept / name).parent.mkdir(exist_ok=True)
        (unkept / name).write_text("x")
    (unkept / "empty.pt").touch()
    (unkept / "link.pt").symlink_to(unkept / "m.pt")
    os.mkfifo(unkept / "pipe.pt")
    found = kept(folders)
    assert found is not None and found.lost == [] and found.copied_files == len(made)
    assert names(found.copied) == sorted(Path(name).name for name in made)
    assert (run / "container" / str(unkept)[1:] / "m.pt").read_text() == "x"


def test_nothing_is_made_where_nothing_was_written(folders: tuple[Path, Path]) -> None:
    (folders[0] / "old.pt").write_text("x")
    assert kept(folders, started=time.time() + 10) is None
    assert list(folders[1].iterdir()) == []


def test_what_is_too_much_is_listed_as_lost(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_files, "MOST_BYTES", 10)
    (folders[0] / "big.pt").write_text("x" * 11)
    (folders[0] / "small.csv").write_text("x" * 10)
    found = kept(folders)
    assert found is not None and (names(found.copied), names(found.lost)) == (["small.csv"], ["big.pt"])
    monkeypatch.setattr(saved_files, "MOST_BYTES", 1000)
    monkeypatch.setattr(saved_files, "MOST_FILES", 1)
    found = kept(folders)
    assert found is not None and (names(found.copied), names(found.lost)) == (["big.pt"], ["small.csv"])
    found = kept(folders, limit_s=-1.0)
    assert found is not None and (found.copied_files, found.lost_files) == (0, 2)


def test_disk_without_space_leaves_no_half_of_a_file(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folders[0] / "m.pt").write_text("x" * 100)
    monkeypatch.setattr(saved_files, "_CHUNK_BYTES", 10)
    monkeypatch.setattr(saved_files.os, "read", lambda *_: (_ for _ in ()).throw(OSError(28, "No space")))
    found = kept(folders)
    assert found is not None and names(found.lost) == ["m.pt"]
    assert [path for path in folders[1].rglob("*") if path.is_file()] == []


def test_folder_that_cannot_be_made_loses_all(folders: tuple[Path, Path]) -> None:
    (folders[0] / "m.pt").write_text("x")
    found = keep([str(folders[0])], str(folders[1] / "missing"), 0.0, 60.0)
    assert found is not None and found.folder is None and names(found.lost) == ["m.pt"]
