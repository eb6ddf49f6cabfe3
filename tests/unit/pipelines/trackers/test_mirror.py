"""The mirror of event files: what a run writes, and nothing that a link of a run's leads to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from seatrial.pipelines.trackers.served import mirror
from seatrial.pipelines.trackers.served.mirror import Mirror

EVENTS = "events.out.tfevents.1795345502.host.1.0"


def shown(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_symlink()}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    made = tmp_path / "runs" / "one"
    made.mkdir(parents=True)
    (made / EVENTS).write_bytes(b"numbers")
    return made.parent


def test_event_files_come_and_go(tmp_path: Path, source: Path) -> None:
    root = tmp_path / "logs"
    kept = Mirror(root, {"runs": source, "models/tensorboard": tmp_path / "later"})
    kept.look()
    assert shown(root) == {f"runs/one/{EVENTS}"} and (root / "runs/one" / EVENTS).read_bytes() == b"numbers"
    (source / "one" / "checkpoint.pt").write_text("no events")
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / EVENTS).write_bytes(b"")
    (source / "one" / EVENTS).unlink()
    kept.look()
    assert shown(root) == {f"models/tensorboard/{EVENTS}"} and not (root / "runs").exists()
    kept.look()


def test_no_link_is_followed(tmp_path: Path, source: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / EVENTS).write_text("a secret")
    (source / "folder").symlink_to(secret)
    (source / "one" / f"x{EVENTS}").symlink_to(secret / EVENTS)
    (source / "one" / "loop").symlink_to(".")
    (source / "one" / "root").symlink_to("/")
    os.mkfifo(source / "one" / f"pipe.{EVENTS}")
    (source / "one" / "projector_config.pbtxt").write_text('embeddings { metadata_path: "/etc/passwd" }')
    kept = Mirror(tmp_path / "logs", {"runs": source, "linked": source / "folder"})
    kept.look()
    assert shown(tmp_path / "logs") == {f"runs/one/{EVENTS}"}


def test_a_flood_of_files_and_folders_ends(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "_MOST_ENTRIES", 50)
    deep = source / "/".join("d" * 30)
    deep.mkdir(parents=True)
    (deep / EVENTS).write_bytes(b"")
    for number in range(200):
        (source / "one" / f"{number}.{EVENTS}").write_bytes(b"")
    kept = Mirror(tmp_path / "logs", {"runs": source})
    kept.look()
    assert 0 < len(shown(tmp_path / "logs")) <= 50
    assert not any(name.startswith("runs/d/d/d/d/d/d/d/d/d/d/d/d/d/d") for name in shown(tmp_path / "logs"))


def test_odd_names(tmp_path: Path, source: Path) -> None:
    odd = source / "naïve\n\udcff"
    odd.mkdir()
    (odd / EVENTS).write_bytes(b"")
    Mirror(tmp_path / "logs", {"runs": source}).look()
    assert len(shown(tmp_path / "logs")) == 2
