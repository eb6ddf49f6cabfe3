"""Files are written whole or not at all."""

import resource
from pathlib import Path

import pytest

from seatrial.train.errors import DiskFullError
from seatrial.train.saving.atomic import write_file, write_text


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "model.pth"
    write_text(path, "old")
    with pytest.raises(KeyError):
        write_file(path, lambda file: (file.write(b"half"), {}["x"]))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_full_disk_is_one_sentence() -> None:
    with pytest.raises(DiskFullError, match="cannot write /dev/full/model"):
        write_text(Path("/dev/full/model"), "x")


def test_a_file_too_large_for_the_limit(tmp_path: Path) -> None:
    """RLIMIT_FSIZE stands in for a full disk: write(2) fails in the middle of the file."""
    torch = pytest.importorskip("torch")
    path = tmp_path / "model.pth"
    write_text(path, "old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(DiskFullError, match=r"cannot write .*model\.pth"):
            write_file(path, lambda file: torch.save(torch.zeros(1_000_000), file))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("x")
    write_text(tmp_path / "ours", "x")
    assert (tmp_path / "ours").stat().st_mode == plain.stat().st_mode
