"""Results in folders that end with the container, model files on a volume, and the run's own folder."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from agent_process import Agent
from seatrial.agent import saved_files
from seatrial.agent.plan import make_folder
from seatrial.agent.saved_files import keep, models
from seatrial.events import FilesOutside


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """The folder that ends with the container, and the run's."""
    for name in ("unkept", "run"):
        (tmp_path / name).mkdir()
    return tmp_path / "unkept", tmp_path / "run"


def kept(folders: tuple[Path, Path], limit_s: float = 60.0) -> FilesOutside:
    found = keep([str(folders[0])], str(folders[1]), 0.0, limit_s)
    assert found is not None
    return found


def names(files: list[dict[str, object]]) -> list[str]:
    return sorted(Path(str(file["path"])).name for file in files)


def test_keep_copies_results_and_nothing_else(folders: tuple[Path, Path]) -> None:
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
    noise = ["x.lock", "k.cubin", "main.cpp", ".hidden/m.pt", ".ses", "__pycache__/m.npy", "torchinductor_me/k.json"]
    for name in (*made, *noise, "tmpabcd1234/x.json"):
        (unkept / name).parent.mkdir(exist_ok=True)
        (unkept / name).write_text("x")
    (unkept / "empty.pt").touch()
    (unkept / "link.pt").symlink_to(unkept / "m.pt")
    os.mkfifo(unkept / "pipe.pt")
    found = kept(folders)
    assert found.lost == [] and found.copied_files == len(made)
    assert names(found.copied) == sorted(Path(name).name for name in made)
    assert (run / "container" / str(unkept)[1:] / "m.pt").read_text() == "x"


def test_keep_makes_nothing_when_nothing_was_written(folders: tuple[Path, Path]) -> None:
    (folders[0] / "old.pt").write_text("x")
    assert keep([str(folders[0])], str(folders[1]), time.time() + 10, 60.0) is None
    assert list(folders[1].iterdir()) == []


def test_files_beyond_the_limits_are_listed_as_lost(folders: tuple[Path, Path], monkeypatch) -> None:
    monkeypatch.setattr(saved_files, "MOST_BYTES", 10)
    (folders[0] / "big.pt").write_text("x" * 11)
    (folders[0] / "small.csv").write_text("x" * 10)
    found = kept(folders)
    assert (names(found.copied), names(found.lost)) == (["small.csv"], ["big.pt"])
    monkeypatch.setattr(saved_files, "MOST_BYTES", 1000)
    monkeypatch.setattr(saved_files, "MOST_FILES", 1)
    found = kept(folders)
    assert (names(found.copied), names(found.lost)) == (["big.pt"], ["small.csv"])
    found = kept(folders, limit_s=-1.0)
    assert (found.copied_files, found.lost_files) == (0, 2)
    found = kept((folders[0], folders[1] / "missing"))
    assert found.folder is None and names(found.lost) == ["big.pt", "small.csv"]


def test_full_disk_leaves_no_half_of_a_file(folders: tuple[Path, Path], monkeypatch) -> None:
    (folders[0] / "m.pt").write_text("x" * 100)
    monkeypatch.setattr(saved_files.os, "read", lambda *_: (_ for _ in ()).throw(OSError(28, "No space")))
    assert names(kept(folders).lost) == ["m.pt"]
    assert [path for path in folders[1].rglob("*") if path.is_file()] == []


def test_models_lists_new_model_files_the_newest_first(tmp_path: Path) -> None:
    began = time.time()
    written = {"deep/a.safetensors": b"12345", "b.PTH": b"1", "notes.txt": b"x", "old.pt": b"x", ".seatrial/s.pt": b"x"}
    for name, data in written.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    os.utime(tmp_path / "old.pt", (began - 60, began - 60))
    os.utime(tmp_path / "b.PTH", (began + 5, began + 5))
    assert models(str(tmp_path), began) == [{"path": "b.PTH", "bytes": 1}, {"path": "deep/a.safetensors", "bytes": 5}]
    assert models(str(tmp_path / "nowhere"), 0.0) == []


def test_agent_makes_the_runs_folder_before_the_target_starts(tmp_path: Path) -> None:
    folder = tmp_path / "models" / ".seatrial" / "run-1"
    (tmp_path / "models").mkdir()
    done = Agent(tmp_path, f"open({str(folder / 'a.pt')!r}, 'w').write('x')", run_dir=str(folder)).run()
    assert done.returncode == 0 and (folder / "a.pt").exists(), done.stderr


def test_make_folder_gives_new_folders_the_mode_of_the_one_above(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models").chmod(0o2775)  # as a volume with an fsGroup has it
    make_folder(str(tmp_path / "models" / ".seatrial" / "run-1"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir(mode=0o700)
    make_folder("run/nodes/0")
    modes = [stat.S_IMODE(Path(name).stat().st_mode) for name in ("models/.seatrial/run-1", "run", "run/nodes/0")]
    assert modes == [0o2775, 0o700, 0o700]
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        make_folder(str(tmp_path / "file" / ".seatrial"))
