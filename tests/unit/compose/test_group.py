"""A group's record: found, changed by several processes, damaged, listed; the group's outputs and its receipt."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from seatrial.cli import _main
from seatrial.cli.completion import complete
from seatrial.cli.control import group_of
from seatrial.cli.options import Root
from seatrial.compose.console import Console, MemberOutput
from seatrial.compose.group import Group, GroupStore, Member, State, ended, find_run
from seatrial.compose.listing import as_json, listed
from seatrial.compose.plan import one_command
from seatrial.compose.receipt import ServiceChain, chain_of, html, terminal, write
from seatrial.compose.watch import TELLS_EXIT
from seatrial.errors import NameInUseError, RunNotFoundError
from seatrial.runs.run import Summary
from seatrial.runs.store import RunStore, new_run_id
from seatrial.system.host import Host
from seatrial.system.names import Names
from tables import cases


@pytest.fixture
def store(tmp_path: Path) -> GroupStore:
    return GroupStore(RunStore(tmp_path))


@pytest.mark.parametrize("begin", ["", "\r\x1b[K", "\x1b[Kshop-"])  # of Compose 2.26 and 2.40
def test_composes_line_on_an_exit_is_not_the_services(begin: str) -> None:
    assert re.fullmatch(TELLS_EXIT.format("web"), f"{begin}web-1 exited with code 137\n")
    assert not re.fullmatch(TELLS_EXIT.format("web"), f"{begin}worker-1 exited with code 137\n")


def test_a_group_is_found_by_id_part_last_and_the_newest_of_a_name(
    store: GroupStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = iter(["20260101-000000-aaaa", "20260102-000000-bbbb", "20260103-000000-cccc"])
    monkeypatch.setattr("seatrial.compose.group.new_run_id", lambda: next(ids))
    store.create((), name="nightly")
    first = store.create((), name="nightly")
    last = store.create((Member("web", "service"),))
    for reference in (first.id, first.id[-4:], "nightly"):
        assert store.find(reference) == first
    assert store.find("last") == last
    with pytest.raises(RunNotFoundError, match='No group "weekly"'):
        store.find("weekly")
    with pytest.raises(RunNotFoundError, match="matches 3 groups"):
        store.find(first.id[:4])


def test_last_is_a_group_that_runs_until_it_ends_or_another_run_starts(store: GroupStore) -> None:
    group = store.create((Member("web", "service", state="running"),))
    assert group_of(store.runs, "last") == group
    store.runs.create("20990101-000000-bcdf", None)
    assert group_of(store.runs, "last") is None
    store.change(group, "web", state="stopped")
    assert group_of(store.runs, "last") is None and group_of(store.runs, group.id) is not None


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


def test_a_key_of_a_later_version_is_passed_over(store: GroupStore) -> None:
    group = store.create((Member("mlflow", "service"),))
    path = store.folder(group.id) / "group.json"
    path.write_text(path.read_text().replace('"role"', '"later": [1], "role"').replace('"kind"', '"new": 1, "kind"'))
    assert store.read(group.id) == group


@cases("states", "expected")
def test_the_state_of_a_group_that_nobody_looks_after(states: list[State], expected: str) -> None:
    members = tuple(Member(str(number), state=state) for number, state in enumerate(states))
    assert Group("20260101-000000-aaaa", members).state == expected


def test_services_that_were_stopped_are_no_failure_of_a_group() -> None:
    task, service = Member("train", state="done"), Member("board", role="service", state="stopped")
    assert Group("20260101-000000-aaaa", (task, service)).state == "done"
    assert Group("20260101-000000-aaaa", (replace(task, state="stopped"), service)).state == "stopped"


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


def ended_run(store: RunStore, target: str, *, at: float) -> str:
    run = store.create(new_run_id(at), None)
    reported = {
        "target": target,
        "backend": "local",
        "gpus": 0,
        "exit_code": 0,
        "outcome": "exit code 0",
        "seconds": 2.0,
    }
    (run.folder / "summary.json").write_text(json.dumps(reported))
    return run.id


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    monkeypatch.chdir(tmp_path)
    return RunStore(tmp_path)


def test_members_stand_under_their_group_between_other_runs(
    project: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    now = time.time()
    older, own = ended_run(project, "old.py", at=now - 90), ended_run(project, "train.py", at=now - 50)
    groups = GroupStore(project)
    members = (
        Member("train", state="done", run=own, target="train.py"),
        Member("export", state="skipped", why="train failed", target="export.py"),
    )
    group = groups.create(members, name="churn")
    lines = listed(project, Host())
    assert [each.line.id for each in lines] == [group.id, own, "", older]
    assert [each.member for each in lines] == [None, "train", "export", None]
    assert [(each["id"], each["member"]) for each in as_json(lines, project)] == [(own, "train"), (older, None)]
    assert len(listed(project, Host(), limit=1)) == 3  # the group, whole
    assert _main(["runs", "ls"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert "churn" in out[1] and "compose: 2 members" in out[1]
    assert out[2].startswith("  2")
    assert out[3].endswith("skipped: train failed")


def test_a_group_whose_run_is_gone_is_still_listed(project: RunStore) -> None:
    GroupStore(project).create((Member("train", state="done", run="20260101-000000-gone"),))
    assert [each.line.status for each in listed(project, Host())] == ["done", "done"]


def run_of(store: RunStore, name: str | None = None, *, ago_s: float = 0.0) -> str:
    run = store.create(new_run_id(time.time() - ago_s), name)
    run.give_up()
    run.events_path.touch()
    return run.id


def test_a_stage_is_found_in_the_newest_group_that_has_it(project: RunStore) -> None:
    groups = GroupStore(project)
    older, newer = run_of(project, ago_s=90), run_of(project, ago_s=50)
    groups.create((Member("train", state="done", run=older), Member("old", state="done", run=older)))
    time.sleep(1.1)  # groups' IDs have seconds
    groups.create((Member("train", state="done", run=newer),))
    assert find_run(project, "train").id == newer and find_run(project, "old").id == older
    assert ("train", newer) in complete(Root(), ["runs", "show"], "")
    own = run_of(project, "train")
    assert find_run(project, "train").id == own  # a run's own name comes first


def test_every_verb_finds_a_stage(project: RunStore, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(project)
    GroupStore(project).create((Member("train", state="failed", run=run),))
    for words in (["show"], ["verify"], ["exec", "--", "true"], ["stop"], ["logs"], ["attach"]):
        _main(["runs", words[0], "train", *words[1:]])
        err = capsys.readouterr().err
        assert 'No run "train"' not in err and "Traceback" not in err, words
    _main(["open", "train", "--print"])
    assert run in capsys.readouterr().err  # never started
    _main(["runs", "show", "tain"])
    assert "did you mean train?" in capsys.readouterr().err


def test_a_group_where_a_run_is_wanted_is_called_one(project: RunStore) -> None:
    group = GroupStore(project).create((Member("train", state="done", run=run_of(project)),), name="night")
    for reference in ("night", group.id):
        with pytest.raises(RunNotFoundError, match="names a group of runs") as caught:
            find_run(project, reference)
        assert caught.value.run == f"seatrial runs show {reference}   # lists its runs"


def test_a_stage_without_a_run_names_the_reason(project: RunStore) -> None:
    group = GroupStore(project).create((Member("export", state="skipped", why="train failed"),))
    with pytest.raises(RunNotFoundError) as reported:
        find_run(project, "export")
    assert str(reported.value) == f'"export" of group {group.id} has no run; it is skipped: train failed'
    assert reported.value.run == f"seatrial runs show {group.id}"
    with pytest.raises(RunNotFoundError, match='No run "nothing" in this project'):
        find_run(project, "nothing")


def lines(chunks: list[tuple[str, str, bytes]], names: list[str]) -> bytes:
    written: list[bytes] = []

    def nobody(*_: object) -> None:
        raise AssertionError("not requested")

    made = MemberOutput(Console(nobody, nobody, lambda stream, data: written.append(data), nobody, nobody), names)
    for name, stream, data in chunks:
        made.writer(name)(stream, data)  # type: ignore[arg-type]
    for name in names:
        made.end(name)
    return b"".join(written)


@pytest.mark.parametrize(
    ("pieces", "printed"),
    [
        ([b"10 %\r20 %\r", b"30 %\r\nno end", b"\xff\xfe"], b"a | 10 %\na | 20 %\na | 30 %\na | no end\xff\xfe\n"),
        ([b"\r\x1b[2K\x1b[32m1/2\x1b[0m\r\x1b[2K2/2\n"], b"a | \na | \x1b[32m1/2\x1b[0m\na | 2/2\n"),
        ([b"\n\nx\n"], b"a | \na | \na | x\n"),
    ],
    ids=["a last line without an end", "a bar that erases its line keeps its colours", "empty lines stay"],
)
def test_lines_of_one_member(pieces: list[bytes], printed: bytes) -> None:
    assert lines([("a", "stdout", piece) for piece in pieces], ["a"]) == printed


def test_lines_come_whole_any_way_pieces_they_came_in() -> None:
    chunks = [("a", "stdout", b"one\ntw"), ("long", "stdout", b"x\n"), ("a", "stderr", b"E\n"), ("a", "stdout", b"o\n")]
    assert lines(chunks, ["a", "long"]) == b"a    | one\nlong | x\na    | E\na    | two\n"


def test_a_line_without_any_end_is_not_kept_for_ever() -> None:
    assert lines([("a", "stdout", b"x" * 70_000)], ["a"]).startswith(b"a | xxx")


ODD = '<script>alert("x")</script> | `rm` & "q"'


def chain(tmp_path: Path, *members: Member) -> ServiceChain:
    store = RunStore(tmp_path)
    group = GroupStore(store).create(members)
    return chain_of(Group(group.id, members, created_at=group.created_at), store)


def test_times_of_members_add_up(tmp_path: Path) -> None:
    made = chain(tmp_path, Member("train", state="done", gpus=2, started_at=1.0, ended_at=3.0), Member("plain"))
    assert made.gpu_s == 4.0 and made.links[0].seconds == 2.0
    assert json.loads(json.dumps(made.as_dict()))["links"][0]["gpu_seconds"] == 4.0


def test_names_are_text_and_never_markup(tmp_path: Path) -> None:
    made = chain(tmp_path, Member(ODD, target=ODD, state="failed", why=ODD))
    assert "<script" not in html(made) and "&lt;script&gt;" in html(made)


def test_it_is_written_into_the_project_without_names_of_people(tmp_path: Path) -> None:
    made = chain(tmp_path, Member("a", state="failed", target="/home/alice/train.py", why="alice was here"))
    path = write(made.without_names(Names(users=("alice",), homes=("/home/alice",))), tmp_path)
    for name in ("receipt.html", "receipt.json"):
        assert "alice" not in (path.parent / name).read_text(), name
    assert path == tmp_path / ".seatrial/pipelines" / made.id / "receipt.html"


def test_a_member_that_missed_its_criteria_fails_the_whole(tmp_path: Path) -> None:
    made = chain(tmp_path, Member("first", state="done"), Member("second", state="done", needs=("first",)))
    first, second = made.links
    fine = replace(made, links=(replace(first, level="warning"), replace(second, level="good")))
    assert fine.passed and "[!] first" in "\n".join(terminal(fine)) and "criteria not met" not in html(fine)
    missed = replace(made, links=(first, replace(second, level="bad")))
    assert not missed.passed and missed.state == "done"
    for text in ("\n".join(terminal(missed)), html(missed)):
        assert "criteria not met: second" in text


def test_a_group_that_runs_has_not_failed(tmp_path: Path) -> None:
    head = next(iter(terminal(chain(tmp_path, Member("first", state="running"), Member("second")))))
    assert head.startswith("[-]") and "running" in head


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (("python", "train.py", "--lr", "0.1"), "python train.py --lr 0.1"),
        (("python", "-c", "print('a')\nb()"), """python -c "print('a')\\nb()\""""),
        (("sh", "-c", "echo '$A'"), """sh -c 'echo '"'"'$A'"'"''"""),
        (("(the command of x)",), "(the command of x)"),
    ],
)
def test_the_command_of_a_service_is_shown_as_typed_on_one_line(argv: tuple[str, ...], shown: str) -> None:
    assert one_command(argv) == shown
