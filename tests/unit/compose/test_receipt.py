"""The chained receipt of a group: on the terminal, as a page, as Markdown and JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from seatrial.compose.group import Group, GroupStore, Member
from seatrial.compose.receipt import ServiceChain, chain_of, html, markdown, terminal, write
from seatrial.runs.store import RunStore
from seatrial.system.names import Names

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
    assert all(line.count("|") - line.count("\\|") in (0, 7) for line in markdown(made).splitlines())


def test_it_is_written_into_the_project_without_names_of_people(tmp_path: Path) -> None:
    made = chain(tmp_path, Member("a", state="failed", target="/home/alice/train.py", why="alice was here"))
    path = write(made.without_names(Names(users=("alice",), homes=("/home/alice",))), tmp_path)
    for name in ("receipt.html", "receipt.md", "receipt.json"):
        assert "alice" not in (path.parent / name).read_text(), name
    assert path == tmp_path / ".seatrial/pipelines" / made.id / "receipt.html"


def test_a_member_that_missed_its_criteria_fails_the_whole(tmp_path: Path) -> None:
    made = chain(tmp_path, Member("first", state="done"), Member("second", state="done", needs=("first",)))
    first, second = made.links
    fine = replace(made, links=(replace(first, level="warning"), replace(second, level="good")))
    assert fine.passed and "[!] first" in "\n".join(terminal(fine)) and "criteria not met" not in html(fine)
    missed = replace(made, links=(first, replace(second, level="bad")))
    assert not missed.passed and missed.state == "done"
    for text in ("\n".join(terminal(missed)), markdown(missed), html(missed)):
        assert "criteria not met: second" in text
