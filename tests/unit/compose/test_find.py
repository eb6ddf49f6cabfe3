"""A stage's run by the name that ``runs ls`` lists it under, in every verb that takes a run."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from seatrial.cli import _main
from seatrial.cli.completion import complete
from seatrial.cli.options import Root
from seatrial.compose.group import GroupStore, Member
from seatrial.compose.output import find_run
from seatrial.errors import RunNotFoundError
from seatrial.runs.store import RunStore, new_run_id


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    monkeypatch.chdir(tmp_path)
    return RunStore(tmp_path)


def run_of(store: RunStore, name: str | None = None, *, ago_s: float = 0.0) -> str:
    run = store.create(new_run_id(time.time() - ago_s), name)
    run.give_up()
    run.events_path.touch()
    return run.id


def test_a_stage_is_found_in_the_newest_group_that_has_it(project: RunStore) -> None:
    groups = GroupStore(project)
    older, newer = run_of(project, ago_s=90), run_of(project, ago_s=50)
    groups.create((Member("train", state="done", run=older), Member("old", state="done", run=older)))
    time.sleep(1.1)  # groups' IDs tell seconds
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


def test_a_stage_without_a_run_names_the_reason(project: RunStore) -> None:
    group = GroupStore(project).create((Member("export", state="skipped", why="train failed"),))
    with pytest.raises(RunNotFoundError) as reported:
        find_run(project, "export")
    assert str(reported.value) == f'"export" of group {group.id} has no run; it is skipped: train failed'
    assert reported.value.run == f"seatrial runs show {group.id}"
    with pytest.raises(RunNotFoundError, match='No run "nothing" in this project'):
        find_run(project, "nothing")
