"""The chained receipt: links by digests, and names that a page must not take for markup."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from seatrial.pipelines.chain import Chain, chain_of
from seatrial.pipelines.chain_page import markdown, page, terminal, write
from seatrial.pipelines.chain_picture import draw
from seatrial.pipelines.group import Group, GroupStore, Member
from seatrial.runs.store import RunStore
from seatrial.system.names import Names

ODD = '<script>alert("x")</script> | `rm` & "q"'


def piece(path: str, digest: str = "sha256:" + "a" * 64) -> dict[str, object]:
    return {"path": path, "digest": digest, "bytes": 1500, "files": 3}


def chain(tmp_path: Path, *members: Member) -> Chain:
    store = RunStore(tmp_path)
    group = GroupStore(store).create("stages", members)
    return chain_of(Group(group.id, "stages", members, created_at=group.created_at), store)


def pair(read: dict[str, object]) -> tuple[Member, Member]:
    return (
        Member("first", state="done", details={"wrote": [piece("made")], "seconds": 2.0}, gpus=2),
        Member("second", state="done", needs=("first",), details={"read": [read]}),
    )


def test_what_was_read_is_what_was_written(tmp_path: Path) -> None:
    made = chain(tmp_path, *pair(piece("made")))
    assert made.passed and made.links[1].read[0].of == "first" and made.gpu_s == 4.0
    assert json.loads(json.dumps(made.as_dict()))["links"][1]["read"][0]["intact"] is True


def test_a_broken_link_is_told_everywhere(tmp_path: Path) -> None:
    made = chain(tmp_path, *pair(piece("made", "sha256:bb")))
    sentence = "second read made, which is not what first wrote"
    assert not made.passed and made.broken == [sentence]
    assert sentence in markdown(made) and sentence in page(made) and "NOT what first wrote" in "\n".join(terminal(made))
    assert 'class="edge off"' in draw(made)


def test_an_unchanged_stage_costs_nothing_now(tmp_path: Path) -> None:
    member = Member("a", state="unchanged", gpus=1, details={"seconds": 60.0}, why="same code")
    made = chain(tmp_path, member)
    assert made.gpu_s == 0 and made.links[0].gpu_seconds == 60 and made.passed


@pytest.mark.parametrize(
    "details", [{"wrote": 3}, {"read": [1, {}, {"path": "x"}]}, {"seconds": None}, {"wrote": None}]
)
def test_details_of_whatever_kind_make_a_page(tmp_path: Path, details: dict[str, object]) -> None:
    made = chain(tmp_path, Member("a", state="failed", details=details, why=ODD))
    assert page(made) and markdown(made) and list(terminal(made)) and draw(made)


def test_names_are_text_and_never_markup(tmp_path: Path) -> None:
    made = chain(tmp_path, Member(ODD, target=ODD, state="failed", why=ODD, details={"wrote": [piece(ODD)]}))
    html = page(made)
    assert "<script" not in html and "&lt;script&gt;" in html
    ElementTree.fromstring(draw(made))
    assert all(line.count("|") - line.count("\\|") in (0, 6, 7) for line in markdown(made).splitlines())


def test_the_picture_has_a_box_for_each_and_a_line_for_each_need(tmp_path: Path) -> None:
    names = [f"m{number}" for number in range(30)]
    members = [Member(name, needs=tuple(names[max(0, n - 2) : n]), state="done") for n, name in enumerate(names)]
    picture = draw(chain(tmp_path, *members))
    assert picture.count("<rect") == 30 and picture.count('class="edge') == 57
    assert draw(chain(tmp_path)).startswith("<svg")  # of no member
    circle = draw(chain(tmp_path, Member("a", needs=("b", "gone")), Member("b", needs=("a",))))
    assert circle.count("<rect") == 2


def test_it_is_written_into_the_project_without_names_of_people(tmp_path: Path) -> None:
    made = chain(tmp_path, Member("a", state="failed", target="/home/alice/train.py", why="alice was here"))
    path = write(made, tmp_path, Names(users=("alice",), homes=("/home/alice",)))
    for name in ("receipt.html", "receipt.md", "receipt.json"):
        assert not re.search("alice", (path.parent / name).read_text()), name
    assert path == tmp_path / ".seatrial/pipelines" / made.id / "receipt.html"


def test_a_stage_that_missed_what_was_asked_of_it_is_told_everywhere(tmp_path: Path) -> None:
    made = chain(tmp_path, *pair(piece("made")))
    first, second = made.links
    fine = replace(made, links=(replace(first, level="warning"), replace(second, level="good")))
    assert fine.passed and "[!] first" in "\n".join(terminal(fine)) and "criteria not met" not in page(fine)
    missed = replace(made, links=(first, replace(second, level="bad")))
    assert not missed.passed and not missed.broken and missed.state == "done"
    assert all("criteria not met: second" in words for words in ("\n".join(terminal(missed)), markdown(missed)))
    assert page(missed).count("criteria not met") == 3 and 'class="box bad"' in draw(missed)
