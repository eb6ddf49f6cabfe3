"""The record of a group: found, changed by several at once, and read whatever became of its file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from seatrial.compose.group import Group, GroupStore, Member, State, ended
from seatrial.errors import NameInUseError, RunNotFoundError
from seatrial.runs.store import RunStore
from seatrial.runs.summary import Summary
from tables import cases


@pytest.fixture
def store(tmp_path: Path) -> GroupStore:
    return GroupStore(RunStore(tmp_path))


def test_a_group_is_found_by_id_part_name_and_last(store: GroupStore) -> None:
    first = store.create((Member("train"),), name="nightly")
    second = store.create((Member("web", "service"),))
    newest = max(first.id, second.id)
    for reference in (first.id, first.id[-4:], "nightly"):
        assert store.find(reference).id == first.id
    assert store.find("last").id == newest
    with pytest.raises(RunNotFoundError, match='No group "weekly"'):
        store.find("weekly")
    with pytest.raises(RunNotFoundError, match="matches 2 groups"):
        store.find(first.id[:4])


def test_a_name_is_free_once_its_group_has_ended_or_its_command_line_was_killed(store: GroupStore) -> None:
    first = store.create((Member("train"),), name="nightly", details={"project": "churn"})
    for name, project in (("nightly", "other"), ("other", "churn"), ("churn", "other")):
        with pytest.raises(NameInUseError, match=f'"nightly" belongs to group {first.id}, which has not ended'):
            store.create((Member("train"),), name=name, details={"project": project})
    store.create((Member("train"),), name="another", details={"project": "other"})
    killed = store.change_group(first, launcher=(2**22 + 1, 1))
    second = store.create((Member("train"),), name="nightly")
    store.change_group(second, launcher=killed.launcher, details={"compose": [1, 1]})
    with pytest.raises(NameInUseError, match=second.id):  # Compose has started it
        store.create((Member("train"),), name="nightly")
    store.change(second, "train", state="done")
    store.create((Member("train"),), name="nightly")


def test_the_newest_of_a_name_is_intended(store: GroupStore, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = iter(["20260101-000000-aaaa", "20260102-000000-bbbb"])
    monkeypatch.setattr("seatrial.compose.group.new_run_id", lambda: next(ids))
    store.create((), name="n")
    newest = store.create((), name="n")
    assert store.find("n") == newest


def test_members_changed_by_many_threads_are_all_written_down(store: GroupStore) -> None:
    members = tuple(Member(f"m{number}") for number in range(20))
    group = store.create(members)
    with ThreadPoolExecutor(max_workers=8) as pool:
        list(pool.map(lambda member: store.change(group, member.name, state="done", exit_code=0), members))
    now = store.find(group.id)
    assert {member.state for member in now.members} == {"done"} and now.state == "done"
    assert now == replace(group, members=tuple(replace(m, state="done", exit_code=0) for m in members))


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"null", b'{"schema_version": 9}', b'{"schema_version": 1}', b"[" * 100_000, b"\xff"]
)
def test_a_file_that_is_none_is_no_group(store: GroupStore, text: bytes) -> None:
    group = store.create((Member("train"),))
    (store.folder(group.id) / "group.json").write_bytes(text)
    assert store.read(group.id) is None and store.all() == []


def test_a_group_of_a_retired_kind_is_not_read(store: GroupStore) -> None:
    group = store.create((Member("train"),))
    path = store.folder(group.id) / "group.json"
    path.write_text(path.read_text().replace('"kind": "compose"', '"kind": "stages"'))
    assert store.all() == []


def test_a_key_of_a_later_version_is_passed_over(store: GroupStore) -> None:
    group = store.create((Member("mlflow", "service"),))
    path = store.folder(group.id) / "group.json"
    path.write_text(path.read_text().replace('"role"', '"later": [1], "role"').replace('"kind"', '"new": 1, "kind"'))
    assert store.read(group.id) == group


@cases("states", "expected")
def test_the_state_of_a_group_that_nobody_looks_after(states: list[State], expected: str) -> None:
    members = tuple(Member(str(number), state=state) for number, state in enumerate(states))
    assert Group("20260101-000000-aaaa", members).state == expected


def test_a_group_runs_while_its_command_line_lives(store: GroupStore) -> None:
    group = store.create((Member("train"),))
    assert group.followed and group.state == "running"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert not replace(group, launcher=(gone.pid, 1)).followed
    assert not replace(group, launcher=(os.getpid(), 1)).followed  # another process had the number


def test_what_a_member_becomes_by_its_run() -> None:
    assert ended(Summary(exit_code=0)) == {"state": "done", "why": "", "exit_code": 0}
    assert ended(Summary(exit_code=1, outcome="exit code 1"))["state"] == "failed"
    assert ended(Summary(exit_code=1, cause="stopped"))["state"] == "stopped"


def test_prune_forgets_groups_that_ended_and_have_no_run_left(store: GroupStore) -> None:
    run = store.runs.create("20260101-000000-aaaa", None)
    kept = store.create((Member("a", state="done", run=run.id),))
    without = store.create((Member("a", state="done", run="20260101-000000-gone"),))
    live = store.create((Member("a", state="waiting"),))
    for group in (kept, without, live):
        store.change_group(group, launcher=None)
    assert [group.id for group in store.without_runs()] == [without.id]
    store.remove(without)
    assert {group.id for group in store.all()} == {kept.id, live.id}


@cases("key", "value")
def test_a_group_with_a_value_of_another_type_is_none_and_hides_no_other(
    store: GroupStore, key: str, value: object
) -> None:
    bad, good = store.create((Member("a"),)), store.create((Member("b"),))
    path = store.folder(bad.id) / "group.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), key: value}))
    assert store.read(bad.id) is None and store.all() == [good]
