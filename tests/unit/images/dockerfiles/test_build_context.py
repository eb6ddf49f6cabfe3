"""The folder beside a user's own Dockerfile: too much of it, and a .dockerignore that does not do what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.images.dockerfiles.lint import check_dockerfile
from seatrial.images.dockerfiles.parts import Remark

WHOLE = "FROM python:3.11-slim\nCOPY . /app\nUSER 1000\n"


def sparse(path: Path, size: int) -> None:
    """A file of this length that takes no room."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)


def remarks(folder: Path, text: str = WHOLE, ignore: str | None = None) -> list[Remark]:
    (folder / "Dockerfile").write_text(text)
    if ignore is not None:
        (folder / ".dockerignore").write_text(ignore)
    return [each for each in check_dockerfile(folder / "Dockerfile") if each.id in ("context-size", "dockerignore")]


def test_a_folder_of_fifty_gigabytes_is_refused_by_its_largest_parts(tmp_path: Path) -> None:
    sparse(tmp_path / "data" / "train.bin", 48_000_000_000)
    sparse(tmp_path / "runs" / "a" / "model.pt", 2_500_000_000)
    sparse(tmp_path / "train.py", 10)
    (remark,) = remarks(tmp_path)
    assert (remark.line, remark.severity) == (2, "error")
    assert remark.message == f"the builder would receive 50.5 GB of {tmp_path}: data 48.0 GB, runs 2.5 GB"
    assert remark.fix.startswith("in .dockerignore: data runs")
    assert remarks(tmp_path, ignore="data\nruns\n") == []


@pytest.mark.parametrize(
    "ignore", ["**/*.bin", "data/*", "/data", "data/train.*", "da?a", "*\n!train.py", "data # no comment\ndata/"]
)
def test_what_is_ignored_is_not_sent(tmp_path: Path, ignore: str) -> None:
    sparse(tmp_path / "data" / "train.bin", 48_000_000_000)
    assert remarks(tmp_path, ignore=ignore) == []


@pytest.mark.parametrize("ignore", ["train.bin", "*.bin", "data\n!data/train.bin", "# data"])
def test_what_only_looks_ignored_is_sent(tmp_path: Path, ignore: str) -> None:
    sparse(tmp_path / "data" / "train.bin", 48_000_000_000)
    assert [each.id for each in remarks(tmp_path, ignore=ignore)] == ["context-size"]


def test_only_what_is_copied_is_sent(tmp_path: Path) -> None:
    sparse(tmp_path / "data" / "train.bin", 48_000_000_000)
    assert remarks(tmp_path, "FROM python:3.11-slim\nCOPY train.py requirements*.txt /app/\n") == []
    assert remarks(tmp_path, "FROM a:1 AS b\nFROM python:3.11-slim\nCOPY --from=b / /\n") == []
    assert [each.id for each in remarks(tmp_path, "FROM python:3.11-slim\nADD data /data\n")] == ["context-size"]


def test_a_missing_dockerignore_is_proposed(tmp_path: Path) -> None:
    sparse(tmp_path / ".git" / "HEAD", 10)
    sparse(tmp_path / "data" / "x", 10)
    (remark,) = remarks(tmp_path)
    assert remark.severity == "hint"
    assert remark.fix == "printf '%s\\n' .git data > .dockerignore"


def test_a_folder_of_code_called_data_is_not_to_be_left_out(tmp_path: Path) -> None:
    for name in ("data", "runs"):
        (tmp_path / name).mkdir()
    (tmp_path / "data" / "loader.py").write_text("x = 1\n")
    (tmp_path / "runs" / "1.log").write_text("x")
    (remark,) = remarks(tmp_path)
    assert remark.fix == "printf '%s\\n' runs > .dockerignore"


def test_a_pattern_that_leads_out_is_named_with_its_line(tmp_path: Path) -> None:
    (remark,) = remarks(tmp_path, ignore="data\n../secrets\n#../x\na/../b\n")
    assert (remark.file, remark.line) == (tmp_path / ".dockerignore", 2)
    assert remark.message == "../secrets points outside the context: it matches nothing"


def test_links_that_run_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "again").symlink_to(tmp_path)  # a folder that contains itself: sent as a link
    assert remarks(tmp_path, ignore="") == []
    (tmp_path / ".dockerignore").unlink()
    (tmp_path / ".dockerignore").symlink_to(".dockerignore")
    (remark,) = remarks(tmp_path)
    assert remark.message == ".dockerignore cannot be read: Too many levels of symbolic links"
