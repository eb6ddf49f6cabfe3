"""Digests follow content, and nothing is read twice that has not changed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from seatrial.errors import UsageError
from seatrial.pipelines.stages import digests as module
from seatrial.pipelines.stages.digests import Digests


def aged(folder: Path) -> None:
    """Files are old enough for their digests to be kept."""
    time.sleep(module.RACY_S + 0.05)


def digest(folder: Path, cache: Path, path: str) -> str:
    found = Digests(cache).of(folder, path)
    assert found is not None
    return found.digest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    (made / "data/inner").mkdir(parents=True)
    (made / "data/a.txt").write_text("a")
    (made / "data/inner/b.txt").write_text("b")
    return made


@pytest.mark.parametrize(
    "change",
    [
        lambda data: (data / "a.txt").write_text("x"),
        lambda data: (data / "a.txt").rename(data / "c.txt"),
        lambda data: (data / "a.txt").rename(data / "inner/a.txt"),
        lambda data: (data / "new").mkdir(),
        lambda data: (data / "link").symlink_to("a.txt"),
        lambda data: (data / "inner/b.txt").unlink(),
        lambda data: (data / ".hidden").write_text(""),
        lambda data: (data / os.fsdecode(b"\xff\n")).write_text(""),
    ],
)
def test_a_folder_has_another_digest_when_anything_in_it_changes(folder: Path, tmp_path: Path, change) -> None:
    before = digest(folder, tmp_path / "cache", "data")
    assert digest(folder, tmp_path / "cache", "data") == before
    change(folder / "data")
    assert digest(folder, tmp_path / "cache", "data") != before


def test_times_modes_and_bytecode_play_no_part(folder: Path, tmp_path: Path) -> None:
    before = digest(folder, tmp_path / "cache", "data")
    os.utime(folder / "data/a.txt", (1, 1))
    (folder / "data/a.txt").chmod(0o600)
    (folder / "data/__pycache__").mkdir()
    (folder / "data/__pycache__/a.pyc").write_text("x")
    (folder / "data").rename(folder / "moved")
    assert digest(folder, tmp_path / "cache", "moved") == before


def test_a_file_is_read_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    real = module._read
    monkeypatch.setattr(module, "_read", lambda path: read.append(path) or real(path))
    aged(folder)
    first = Digests(tmp_path / "cache")
    told = first.of(folder, "data")
    first.save()
    assert len(read) == 2 and Digests(tmp_path / "cache").of(folder, "data") == told and len(read) == 2
    (folder / "data").rename(folder / "elsewhere")  # outputs are put in their place like this
    assert Digests(tmp_path / "cache").of(folder, "elsewhere").digest == told.digest and len(read) == 2
    status = (folder / "elsewhere/a.txt").stat()
    (folder / "elsewhere/a.txt").write_text("z")
    os.utime(folder / "elsewhere/a.txt", ns=(status.st_atime_ns, status.st_mtime_ns))  # as rsync -t does
    assert Digests(tmp_path / "cache").of(folder, "elsewhere").digest != told.digest


def test_a_file_that_may_change_again_unnoticed_is_not_kept(folder: Path, tmp_path: Path) -> None:
    (folder / "young").write_text("1")
    first = Digests(tmp_path / "cache")
    first.of(folder, "young")
    first.save()
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b'{"1:2": [1]}', b'{"1:2": "x"}', b"\xff"])
def test_a_broken_cache_is_none(folder: Path, tmp_path: Path, text: bytes) -> None:
    (tmp_path / "cache").write_bytes(text)
    assert digest(folder, tmp_path / "cache", "data").startswith("sha256:")


def test_what_is_not_there_and_what_has_no_content(folder: Path, tmp_path: Path) -> None:
    digests = Digests(tmp_path / "cache")
    assert digests.of(folder, "nothing") is None
    os.mkfifo(folder / "pipe")
    with pytest.raises(UsageError, match="neither a file nor a folder"):
        digests.of(folder, "pipe")
    os.mkfifo(folder / "data/pipe")  # in a folder it is passed over, and nobody waits for it
    assert digests.of(folder, "data").files == 2
