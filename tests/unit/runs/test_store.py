"""The store of runs: what is recorded is believed, what lies in the project is looked at and no more."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from fakes import a_plan
from seatrial.backends.base import Handle
from seatrial.errors import NameInUseError, RunNotFoundError, SeatrialError, UntrustedPathError, UsageError
from seatrial.runs import run_actions
from seatrial.runs.run import COPIED, Run, run_name
from seatrial.runs.status import line_of, started_at
from seatrial.runs.store import RunStore, nearest_store, new_run_id, other_projects
from seatrial.system.host import Host
from seatrial.system.records import Process

ID = "20261120-231501-k3f9"


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_an_id_shows_when_it_was_made_in_every_time_zone(monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    made = new_run_id(1_796_000_000)
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    assert started_at(made) == 1_796_000_000 and new_run_id(1_796_000_001) > made
    monkeypatch.undo()
    time.tzset()


# ---------------------------------------------------------------------- names


def test_a_run_whose_launcher_died_before_its_plan_is_not_there_and_is_cleared(store: RunStore) -> None:
    killed = store.create(ID, "baseline")
    assert line_of(killed, Host({})).outcome == "its plan is being made"
    killed.hand_over(Process(2**22 + 1, 1))
    (killed.folder / ".plan.json.cut").write_text("{")
    assert store.all() == [] and store.unfinalised("baseline") is None
    with pytest.raises(RunNotFoundError):
        store.find(ID)
    again = store.create("20261121-000000-bcdf", "baseline")
    assert [run.id for run in store.all()] == [again.id]
    assert not killed.folder.exists() and not killed.place.exists()


def test_a_run_that_has_evidence_and_no_plan_is_kept(store: RunStore) -> None:
    run = store.create(ID, None)
    run.hand_over(Process(2**22 + 1, 1))
    run.events_path.write_text("")
    store.create("20261121-000000-bcdf", None)
    assert ID in store.ids()


def test_a_removal_that_was_killed_half_way_is_finished(store: RunStore) -> None:
    run = store.create(ID, None)
    run.folder.rename(store.root / f".{ID}")
    assert store.all() == []
    store.create("20261121-000000-bcdf", None)
    assert [path.name for path in store.root.iterdir()] == ["20261121-000000-bcdf"]


# ---------------------------------------------------------------------- layout


def test_a_run_is_a_record_out_of_the_project_and_a_place_in_it(store: RunStore, tmp_path: Path) -> None:
    run = store.create(ID, "baseline")
    run.save_plan(a_plan())
    run.save_handle(Handle(backend="docker", id="c"))
    assert run.folder.is_relative_to(tmp_path / "state") and run.place == store.project / ".seatrial" / "runs" / ID
    assert sorted(path.name for path in run.folder.iterdir()) == [
        "agent.json", "handle.json", "home", "launcher.json", "name", "plan.json",
    ]  # fmt: skip
    assert run.folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in run.folder.iterdir() if path.is_file()} == {0o600}
    assert run.checkpoints.is_dir() and (run.folder / "home").is_dir()
    assert sorted(p.name for p in run.place.iterdir() if p.is_symlink()) == [
        "events.jsonl", "home", "stderr.log", "stdout.log",
    ]  # fmt: skip
    assert (store.project / ".seatrial" / ".gitignore").read_text() == "*\n"
    assert set(json.loads((run.folder / "agent.json").read_text())) == {"agent", "injection"}  # all that it is shown
    known = {"project": str(store.project), "inode": store.project.stat().st_ino}
    assert json.loads((store.record / "project.json").read_text()) == known


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_copies_of_a_receipt_have_the_mode_that_the_umask_leaves(store: RunStore, umask: int, mode: int) -> None:
    run = store.create(ID, None)
    for name in COPIED:
        run.records.write(name, b"x")
    before = os.umask(umask)
    try:
        run.show_receipt()
    finally:
        os.umask(before)
    assert {(run.place / name).stat().st_mode & 0o777 for name in COPIED} == {mode}


@pytest.mark.parametrize("key", ["index_url", "find_links"])
def test_a_login_of_a_package_source_is_not_written_down(store: RunStore, key: str) -> None:
    run, plan = store.create(ID, None), a_plan()
    image = plan.job.image.model_copy(update={key: "https://me:hunter2@e.org/wheels"})
    run.save_plan(plan.model_copy(update={"job": plan.job.model_copy(update={"image": image})}))
    written = (run.folder / "plan.json").read_text()
    assert "https://e.org/wheels" in written and "hunter2" not in written


def test_a_renamed_project_keeps_its_runs_and_a_copy_of_it_gets_none(store: RunStore, tmp_path: Path) -> None:
    a_run(store, 1, finalised=True)
    host = Host({"SEATRIAL_STATE": str(store.record.parents[1])})
    shutil.copytree(store.project, tmp_path / "copy", symlinks=True)
    renamed = store.project.rename(tmp_path / "renamed")
    assert nearest_store(tmp_path / "copy", host).all() == []
    [run] = nearest_store(renamed, host).all()
    assert run.ended and not store.record.exists()
    assert run.place.parent.parent.parent == renamed and (run.place / "home").is_dir()


def test_a_name_is_given_once(store: RunStore) -> None:
    run = store.create(ID, "baseline")
    with pytest.raises(NameInUseError):
        store.create("20261120-231502-k3f9", "baseline")
    (run.folder / "summary.json").write_text("{}")
    store.create("20261120-231502-k3f9", "baseline")


# ----------------------------------------------- links where folders should be


@pytest.mark.parametrize("parts", [(".seatrial",), (".seatrial", "runs"), (".seatrial", "runs", ID)])
def test_a_link_put_there_later_is_deleted_and_not_followed(
    store: RunStore, tmp_path: Path, parts: tuple[str, ...]
) -> None:
    """`prune` deleted a home folder through a link in place of .seatrial/runs."""
    home = tmp_path / "home"
    below = home.joinpath("runs", ID) if parts[-1] == ".seatrial" else home / ID if parts[-1] == "runs" else home
    below.mkdir(parents=True)
    (below / "precious").touch()
    run = store.create(ID, None)
    place = store.project.joinpath(*parts)
    shutil.rmtree(place)
    place.symlink_to(home)
    (run.folder / "summary.json").write_text("{}")
    if place == run.place:
        store.remove(run)
        assert not place.is_symlink() and store.all() == []
    else:
        with pytest.raises(UntrustedPathError, match="is a symlink"):
            store.remove(run)
    assert (below / "precious").exists()


def test_a_folder_in_the_project_is_no_run(store: RunStore) -> None:
    """A script, or the sender of the project, could have put it there."""
    folder = store.places / ID
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(a_plan().model_dump_json())
    assert store.all() == []
    with pytest.raises(RunNotFoundError):
        store.find(ID)


def odd(path: Path, kind: str) -> None:
    """Put something in place of a file."""
    if path.is_file() or path.is_symlink():
        path.unlink()
    make = {
        "folder": path.mkdir,
        "pipe": lambda: os.mkfifo(path),
        "ring": lambda: path.symlink_to(path.name),
        "zero": lambda: path.symlink_to("/dev/zero"),
        "garbage": lambda: path.write_bytes(b"\xff\x00{"),
        "huge": lambda: (path.touch(), os.truncate(path, 2**40)),
    }
    make[kind]()


KINDS = ["folder", "pipe", "ring", "zero", "garbage", "huge"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["plan.json", "summary.json", "name", "handle.json", "launcher.json"])
def test_a_damaged_record_is_listed_and_can_be_removed(
    store: RunStore, environ: dict[str, str], name: str, kind: str
) -> None:
    """A line that reports it, never a traceback; and the others are as they were."""
    damaged, other = store.create(ID, None), store.create("20261120-231502-k3f9", "other")
    for run in (damaged, other):
        run.save_plan(a_plan(backend="local", image=None, container=None, run_id=run.id))
        run.give_up()
    odd(damaged.folder / name, kind)
    assert len([line_of(run, Host(environ)) for run in store.all()]) == 2
    assert store.find("other") == other
    try:
        damaged.plan(), damaged.summary(), damaged.is_starting(), damaged.ended, run_name(damaged), damaged.handle()
    except SeatrialError:
        pass
    store.remove(damaged)
    assert [run.id for run in store.all()] == [other.id]


@pytest.mark.parametrize("reference", ["", " ", "/", "..", "../..", "\0", "-", "x" * 10_000])
def test_no_word_finds_more_than_a_run(store: RunStore, reference: str) -> None:
    store.create(ID, None)
    with pytest.raises(RunNotFoundError):
        store.find(reference)


def test_a_part_of_an_id_finds_one_run_or_none(store: RunStore) -> None:
    first, second = store.create(ID, None), store.create("20261120-231502-m4g8", None)
    assert store.find("m4g8") == store.find("20261120-231502") == second and store.find("k3f9") == first
    with pytest.raises(RunNotFoundError, match="matches 2 runs"):
        store.find("20261120")


@pytest.mark.parametrize("run_id", ["..", ".", "", "../../home", "20261120-231501-k3f9/.."])
def test_only_a_run_of_this_store_is_removed(store: RunStore, tmp_path: Path, run_id: str) -> None:
    store.create(ID, None)
    (tmp_path / "precious").touch()
    other = Run(Path(f"{store.root}/{run_id}"), Path(f"{store.places}/{run_id}"))
    with pytest.raises(UsageError, match="does not delete"):
        store.remove(other)
    with pytest.raises(UsageError, match="does not delete"):
        store.remove(Run(tmp_path / ID, store.places / ID))
    assert (tmp_path / "precious").exists() and len(store.all()) == 1


def test_other_projects_are_those_that_still_have_a_folder_of_ours(store: RunStore, tmp_path: Path) -> None:
    host = Host({"SEATRIAL_STATE": str(tmp_path / "state")})
    store.create(ID, None)
    for name in ("gone", "link"):
        (tmp_path / name).mkdir()
        RunStore(tmp_path / name, host).create(ID, None)
        shutil.rmtree(tmp_path / name / ".seatrial")
    (tmp_path / "link" / ".seatrial").symlink_to(store.project)
    (store.record.parent / "broken").mkdir()
    (store.record.parent / "broken" / "project.json").write_text('{"project": 7}')
    assert other_projects(host) == [store.project / ".seatrial"]


# -------------------------------------------------------------------- prune


#: An engine's program that does not exist.
NO_ENGINE = {"SEATRIAL_DOCKER": "/nonexistent/docker"}


def a_run(store: RunStore, number: int, *, finalised: bool) -> Run:
    run = store.create(f"20261121-00000{number}-bcdf", None)
    run.give_up()
    (run.folder / "handle.json").write_text(json.dumps({"backend": "docker", "id": f"{number}" * 64}))
    if finalised:
        (run.folder / "summary.json").write_text("{}")
    return run


def test_prune_takes_what_is_finalised_and_leaves_what_cannot_be_requested(tmp_path):
    store = RunStore(tmp_path)
    runs = [a_run(store, number, finalised=number != 2) for number in (1, 2, 3)]
    assert run_actions.prune(store, Host(NO_ENGINE), keep=0, dry_run=True).runs == 2
    assert run_actions.prune(store, Host(NO_ENGINE), keep=1, dry_run=False).runs == 1
    assert [run.id for run in store.all()] == [runs[1].id, runs[2].id]
