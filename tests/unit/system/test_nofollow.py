"""Places that somebody else writes: nothing is followed, nothing hangs, and only what is there is deleted."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from seatrial.errors import UntrustedPathError
from seatrial.system.nofollow import files_below, folder, open_regular, remove_tree, tree_bytes


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A folder that must be as it was afterwards."""
    made = tmp_path / "outside"
    (made / "inner").mkdir(parents=True)
    (made / "secret").write_text("secret")
    (made / "inner" / "file").write_text("file")
    yield made
    assert sorted(path.name for path in made.rglob("*")) == ["file", "inner", "secret"]
    assert (made / "secret").read_text() == "secret"


@pytest.fixture
def top(tmp_path: Path) -> Path:
    (tmp_path / "top").mkdir()
    return tmp_path / "top"


def remove(top: Path, name: str) -> None:
    with folder(top) as descriptor:
        remove_tree(descriptor, name)


# ----------------------------------------------------------------------- files


def odd_files(top: Path, outside: Path) -> list[Path]:
    (top / "link").symlink_to(outside / "secret")
    (top / "dangling").symlink_to(outside / "nowhere")
    (top / "ring").symlink_to("ring")
    (top / "folder").mkdir()
    os.mkfifo(top / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        before = Path.cwd()
        os.chdir(top)  # a socket's path holds 107 bytes
        listener.bind("socket")
        os.chdir(before)
    return sorted(top.iterdir())


def test_a_regular_file_is_read_and_nothing_else(top: Path, outside: Path) -> None:
    (top / "file").write_bytes(b"text")
    with open_regular(top / "file") as file:
        assert file.read() == b"text"
    (top / "file").unlink()
    odd = odd_files(top, outside)
    assert len(odd) == 6
    for path in odd:
        with pytest.raises(UntrustedPathError) as refused:
            open_regular(path)
        assert str(path) in refused.value.message
    with pytest.raises(UntrustedPathError):
        open_regular(Path("/dev/zero"))
    with pytest.raises(FileNotFoundError):
        open_regular(top / "absent")
    with pytest.raises(UntrustedPathError):
        open_regular(top / ("x" * 300))


# --------------------------------------------------------------------- folders


@pytest.mark.parametrize("level", range(4))
def test_a_link_at_any_level_is_refused(top: Path, outside: Path, level: int) -> None:
    parts = ["a", "b", "c", "d"]
    path = top
    for part in parts[:level]:
        path = path / part
        path.mkdir()
    (path / parts[level]).symlink_to(outside)
    for make in (False, True):
        with pytest.raises(UntrustedPathError, match="is a symlink") as refused, folder(top, *parts, make=make):
            pass
        assert str(path / parts[level]) in refused.value.message


def test_what_was_entered_is_what_is_used(top: Path, outside: Path) -> None:
    """Its name becomes a link while it is open."""
    with folder(top, "a", make=True) as descriptor:
        (top / "a").rename(top / "moved")
        (top / "a").symlink_to(outside)
        os.mkdir("new", dir_fd=descriptor)
    assert (top / "moved" / "new").is_dir()


# -------------------------------------------------------------------- deleting


def test_a_tree_goes_and_what_its_links_lead_to_stays(top: Path, outside: Path) -> None:
    tree = top / "tree"
    (tree / "sub" / "deeper").mkdir(parents=True)
    odd_files(tree, outside)
    (tree / "to-folder").symlink_to(outside)
    (tree / "sub" / "up").symlink_to(top)
    (tree / "sub" / "deeper" / "root").symlink_to("/")
    os.link(outside / "secret", tree / "hard")
    remove(top, "tree")
    assert list(top.iterdir()) == []


@pytest.mark.parametrize("kind", ["link", "file", "pipe", "dangling"])
def test_what_is_no_tree_goes_as_what_it_is(top: Path, outside: Path, kind: str) -> None:
    {
        "link": lambda: (top / "x").symlink_to(outside),
        "file": (top / "x").touch,
        "pipe": lambda: os.mkfifo(top / "x"),
        "dangling": lambda: (top / "x").symlink_to("nowhere"),
    }[kind]()
    remove(top, "x")
    assert list(top.iterdir()) == []
    remove(top, "x")  # nothing there: nothing to do


def nest(top: Path, depth: int) -> None:
    """Folders in folders, each with a file, deeper than any path can name."""
    here = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = inner
        os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)


def test_three_thousand_folders_deep(top: Path) -> None:
    nest(top, 3000)
    assert tree_bytes(top) == 0
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(int(path.name) for path in Path("/proc/self/fd").iterdir())  # this test process has files of its own
    resource.setrlimit(resource.RLIMIT_NOFILE, (most + 40, hard))
    try:
        remove(top, "d")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert list(top.iterdir()) == []


#: As a user without capabilities, in the folder that it is started in; root becomes somebody else.
ORDINARY = """
import os, sys
from seatrial.system.nofollow import folder, remove_tree
here = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
if os.getuid() == 0:
    os.chown(".", 1001, 1001)
    os.setgroups([]); os.setgid(1001); os.setuid(1001)
{body}
"""


def as_ordinary_user(folder: Path, body: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", ORDINARY.format(body=body)], cwd=folder, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_a_folder_of_another_user_is_copied_unless_the_home_lies_in_it(top: Path) -> None:
    body = """
from pathlib import Path
from seatrial.system.nofollow import _make
os.chmod(".", 0o555)
def refused(name):
    try: _make(here, name, Path.cwd() / ".seatrial" / name)
    except Exception as error: print(error.run.partition("no write permission? ")[2])
for home in ("/elsewhere", str(Path.cwd() / "me")):
    os.environ["HOME"] = home
    try: _make(here, ".seatrial", Path.cwd() / ".seatrial")
    except Exception as error: print(error.run.partition("no write permission? ")[2])
os.environ["HOME"] = "/elsewhere"
refused("runs")
del os.environ["HOME"]
os.getuid = lambda: 54321  # of no line in /etc/passwd: no home takes a copy
refused("runs")
"""
    copied = f"Work in a copy: cp -r {top} ~/{top.name}-copy"
    expected = [copied, "First: cd FOLDER_OF_THE_SCRIPT", copied, "First: cd FOLDER_OF_THE_SCRIPT"]
    assert as_ordinary_user(top, body).splitlines() == expected, "of the project, not of its .seatrial"


@pytest.mark.parametrize("mode", ["0o000", "0o555", "0o111", "0o200"])
def test_a_mode_does_not_keep_a_tree_from_its_owner(top: Path, mode: str) -> None:
    """A script that runs ``chmod -R 000 .`` at its end would otherwise stay for ever, and stop every prune."""
    body = f"""
os.makedirs("tree/a/b/c"); os.makedirs("tree/x")
open("tree/a/b/file", "w").close()
for path in ("tree/a/b/c", "tree/a/b", "tree/a", "tree/x", "tree"): os.chmod(path, {mode})
remove_tree(here, "tree")
print(os.listdir(here))
"""
    assert as_ordinary_user(top, body) == "[]\n"


def test_what_belongs_to_another_user_is_reported_and_not_worked_around(top: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can make another user's folder")
    (top / "tree" / "theirs").mkdir(parents=True)
    (top / "tree" / "theirs" / "file").touch()
    os.chown(top / "tree", 1001, 1001)
    body = """
try: remove_tree(here, "tree")
except OSError as error: print(error.strerror)
"""
    assert as_ordinary_user(top, body) == "Permission denied\n"
    assert (top / "tree" / "theirs" / "file").exists()


# --------------------------------------------------------------------- looking


def test_sizes_are_of_regular_files_alone(top: Path, outside: Path) -> None:
    odd_files(top, outside)
    (top / "folder" / "five").write_bytes(b"12345")
    (top / ".hidden").mkdir()
    (top / ".hidden" / "three").write_bytes(b"123")
    assert tree_bytes(top) == 8
    assert [entry.name for entry in files_below(top)] == ["five"]
    assert tree_bytes(top / "absent") == 0


def test_looking_has_an_end_in_one_folder_as_in_many(top: Path) -> None:
    (top / "flat").mkdir()
    for number in range(3000):
        (top / "flat" / str(number)).touch()
    tracemalloc.start()
    assert len(list(files_below(top, most_entries=101))) == 100
    few = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert few < 200_000  # entries that are not looked at are not held either
    assert sum(1 for _ in files_below(top, most_entries=5000)) == 3000
