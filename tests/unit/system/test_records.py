"""Records: whole or absent, also while others write into their folder."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel

from seatrial.errors import DiskError, UntrustedPathError
from seatrial.system.files import cannot_write, make_folder, require_writable
from seatrial.system.records import MAX_BYTES, Folder, Process
from tables import cases


class Model(BaseModel):
    size: int


@dataclass
class Plain:
    size: int


@pytest.mark.parametrize("value", [Model(size=3), Plain(3), {"size": 3}, '{"size": 3}', b'{"size": 3}'])
def test_a_written_record_is_read_back_and_is_its_owners_alone(tmp_path: Path, value: object) -> None:
    folder = Folder(tmp_path)
    folder.write("a.json", value)
    assert folder.read("a.json", Model) == Model(size=3) and folder.read("a.json", dict) == {"size": 3}
    assert (tmp_path / "a.json").stat().st_mode & 0o777 == 0o600
    assert folder.has("a.json") and folder.names("*.json") == ["a.json"]
    folder.remove("a.json")
    folder.remove("a.json")
    assert not folder.has("a.json") and folder.read("a.json", Model) is None


HOSTILE: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a folder": Path.mkdir,
    "a link": lambda path: path.symlink_to(path.parent / "theirs.json"),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "nested too deep": lambda path: path.write_text("[" * 200_000 + "]" * 200_000),
    "not UTF-8": lambda path: path.write_bytes(b'{"\xff": 1}'),
    "not JSON": lambda path: path.write_text("{"),
    "of another type": lambda path: path.write_text('{"size": "x"}'),
    "empty": Path.touch,
    "too large": lambda path: path.write_bytes(b" " * (MAX_BYTES + 1)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_record_that_cannot_be_believed_is_none(tmp_path: Path, name: str) -> None:
    (tmp_path / "theirs.json").write_text('{"size": 3}')
    HOSTILE[name](tmp_path / "a.json")
    for kind in (Model, Plain):
        assert Folder(tmp_path).read("a.json", kind) is None
        with pytest.raises(UntrustedPathError, match=r"a\.json"):
            Folder(tmp_path).get("a.json", kind)


@dataclass
class Typed:
    number: float = 0.0
    count: int | None = None
    words: tuple[str, ...] = ()
    pair: tuple[int, int] | None = None
    kind: Literal["a", "b"] = "a"
    parts: tuple[Plain, ...] = ()


@cases("content")
def test_a_value_that_its_annotation_excludes_names_the_key(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(UntrustedPathError) as refused:
        Folder(tmp_path).get("a.json", Typed)
    key = content.partition('"')[2].partition('"')[0]
    assert refused.value.cause == (f"its key {key} is invalid" if key else "it is not JSON, or of another kind")


def test_a_dataclass_is_made_of_json_and_further_keys_are_left_out(tmp_path: Path) -> None:
    made = Typed(3.0, None, ("a",), (1, 2), "b", (Plain(3),))
    Folder(tmp_path).write("a.json", made)
    assert Folder(tmp_path).get("a.json", Typed) == made
    Folder(tmp_path).write("a.json", {"number": 3, "carbon_g": []})
    assert Folder(tmp_path).get("a.json", Typed) == Typed(3.0)


def test_a_file_above_the_limit_is_measured_by_its_size_alone(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"12345")
    assert Folder(tmp_path).measure("a.log") == (5, hashlib.sha256(b"12345").hexdigest())
    assert Folder(tmp_path).measure("a.log", max_bytes=4) == (5, None)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to(path.parent / "elsewhere")])
def test_a_lock_that_is_no_file_is_refused_and_not_waited_for(
    tmp_path: Path, kind: Callable[[Path], object], shared: bool
) -> None:
    kind(tmp_path / ".lock")
    with pytest.raises((UntrustedPathError, DiskError)), Folder(tmp_path, shared=shared).lock(".lock"):
        raise AssertionError
    assert not (tmp_path / "elsewhere").exists()


def test_another_users_file_is_not_read_where_that_matters(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can make another user's file")
    (tmp_path / "a.json").write_text('{"size": 3}')
    os.chown(tmp_path / "a.json", 1001, 1001)
    assert Folder(tmp_path).read("a.json", Model) == Model(size=3)
    with pytest.raises(UntrustedPathError, match="another user"):
        Folder(tmp_path, own=True).load("a.json")


def test_a_missing_folder_has_no_records_and_takes_none(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "gone")
    assert folder.names("*") == [] and folder.read("a.json", dict) is None
    with pytest.raises(DiskError):
        folder.write("a.json", {})
    with pytest.raises(DiskError), folder.lock(".lock"):
        pass


@pytest.mark.parametrize("shared", [False, True])
def test_changes_under_the_lock_are_not_lost(tmp_path: Path, shared: bool) -> None:
    folder = Folder(tmp_path, mode=0o644 if shared else 0o600, shared=shared)
    folder.write("n.json", 0)

    def count() -> None:
        for _ in range(20):
            with folder.lock(".lock"):
                folder.write("n.json", json.loads(folder.load("n.json")) + 1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert json.loads(folder.load("n.json")) == 80
    assert (tmp_path / ".lock").stat().st_mode & 0o777 == (0o644 if shared else 0o600)


def test_a_process_is_alive_until_it_ends_and_another_of_its_pid_is_another(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        process = Process.of(child.pid)
        assert process is not None and process.is_alive()
        assert not Process(child.pid, process.started_ticks + 1).is_alive()
        Folder(tmp_path).write("p.json", process)
        assert Folder(tmp_path).read("p.json", Process) == process
        child.kill()
    assert not process.is_alive() and Process.of(child.pid) is None and Process.this().is_alive()


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", "1" + "0" * 200])
def test_a_number_that_nothing_can_be_measured_by_is_refused_in_a_model_too(tmp_path: Path, number: str) -> None:
    (tmp_path / "a.json").write_text(f'{{"size": 3, "more": [{number}]}}')
    for kind in (Model, Plain, dict):
        assert Folder(tmp_path).read("a.json", kind) is None


def test_a_file_in_place_of_a_folder_is_shown_not_the_free_space(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(DiskError, match="File exists") as raised:
        make_folder(tmp_path / "cache")
    assert raised.value.run == f"ls -ld {tmp_path}"


def test_a_folder_of_a_read_only_mount_is_refused_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mount = os.statvfs_result((*os.statvfs(tmp_path)[:8], os.ST_RDONLY, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: mount)
    with pytest.raises(DiskError, match="Read-only file system") as raised:
        require_writable(tmp_path / "x")
    assert raised.value.run == f"findmnt -T {tmp_path}"


@pytest.mark.parametrize(
    ("code", "shows"), [(errno.EROFS, "findmnt -T"), (errno.ENOSPC, "df -h"), (errno.EPERM, "ls -ld")]
)
def test_what_cannot_be_written_is_shown_by_its_cause(tmp_path: Path, code: int, shows: str) -> None:
    assert cannot_write(tmp_path / "x", OSError(code, os.strerror(code))).run == f"{shows} {tmp_path}"
