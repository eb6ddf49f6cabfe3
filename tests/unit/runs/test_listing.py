"""A line of a listing: what it calls a run that has ended."""

import json
import time
from dataclasses import replace

import pytest

from seatrial import cli
from seatrial.cli import tables
from seatrial.compose import listing
from seatrial.runs.store import RunStore
from seatrial.system.host import Host
from tables import cases

ENDED = {"id": "x", "name": None, "target": "train.py", "backend": "docker", "gpus": 0, "seconds": 1.0}


@cases("exit_code", "headline", "shown")
def test_the_headline_of_the_receipt_stands_in_the_list(tmp_path, capsys, monkeypatch, exit_code, headline, shown):
    monkeypatch.setenv("SEATRIAL_STATE", str(tmp_path / "state"))
    store = RunStore(tmp_path, Host({"SEATRIAL_STATE": str(tmp_path / "state")}))
    run = store.create("20261120-120000-kkkk", None)
    summary = {**ENDED, "exit_code": exit_code, "outcome": "…", "cause": "finished", "headline": headline}
    (run.folder / "summary.json").write_text(json.dumps(summary))
    assert cli._main(["runs", "ls", "-C", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[1].endswith(f"  1 s   {shown}")


@pytest.fixture
def many(tmp_path, monkeypatch):
    """A project with a run of each ending, an hour apart, the newest begun five minutes ago."""
    monkeypatch.setenv("SEATRIAL_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    store = RunStore(tmp_path)
    endings = [
        (0, "finished", "passed", "good"),
        (0, "finished", "criteria not met: Metric accuracy (0.6, required >= 0.99)", "unmet"),
        (1, "script-error", "The target exited with 1", None),
        (1, "stopped", "stopped", "halted"),
    ]
    for hours, (exit_code, cause, headline, name) in enumerate(endings):
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(time.time() - 300 - 3600 * hours))
        run = store.create(f"{stamp}-kkk{hours}", name)
        summary = {**ENDED, "name": name, "exit_code": exit_code, "outcome": "…", "cause": cause, "headline": headline}
        (run.folder / "summary.json").write_text(json.dumps(summary))
    return tmp_path


def listed(capsys, *words: str) -> list[str]:
    assert cli._main(["runs", "ls", *words]) == 0
    return capsys.readouterr().out.splitlines()[1:]


def test_only_those_of_a_status(many, capsys):
    assert len(listed(capsys)) == 4
    [failed] = listed(capsys, "--status", "failed")
    assert failed.endswith("failed: exit code 1")
    [unmet] = listed(capsys, "--status", "unmet")
    assert "unmet" in unmet and unmet.endswith("Metric accuracy (0.6, required >= 0.99)")
    assert len(listed(capsys, "--status", "failed,stopped")) == 2
    assert len(listed(capsys, "--status", "failed,stopped", "-n", "1")) == 1
    assert cli._main(["runs", "ls", "--status", "broken"]) == 2


def test_only_those_since(many, capsys):
    assert len(listed(capsys, "--since", "10m")) == 1
    assert len(listed(capsys, "--since", "2h")) == 2
    assert len(listed(capsys, "--since", "1d")) == 4
    day = time.strftime("%Y-%m-%d", time.localtime(time.time() - 86400))
    assert len(listed(capsys, "--since", day)) == len(listed(capsys, "--since", f"{day}T00:00")) == 4
    assert cli._main(["runs", "ls", "--since", "2999-01-01"]) == 0
    assert cli._main(["runs", "ls", "--since", "2026-13-01"]) == cli._main(["runs", "ls", "--since", "0001-01-01"]) == 2
    assert cli._main(["runs", "ls", "--since", "soon"]) == 2
    assert cli._main(["runs", "ls", "--since", "1s"]) == 0
    assert "No such runs" in capsys.readouterr().err


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120])
def test_a_narrow_terminal_cuts_the_reason_and_never_the_state(many, width):
    found = listing.listed(RunStore(many), Host({}))
    target = "train.py -- --epochs 500 --data /data/photos/of/ships --width 512"
    found = [each._replace(line=replace(each.line, target=target)) for each in found]
    lines = tables.runs_lines(found, width, time.time())
    assert lines[0].endswith("STATUS") and "TARGET" in lines[0] and all(len(line) <= width for line in lines)
    for line, state in zip(lines[1:], ["passed", "criteria not met", "failed", "stopped"], strict=True):
        assert f"  {state}" in line
    assert lines[1].startswith("good ") and lines[3].startswith("kkk2 ")


def test_a_narrow_terminal_shows_the_setting_in_which_trials_differ(many):
    found = listing.listed(RunStore(many), Host({}))[:3]
    members = [
        each._replace(
            group="s", member=f"trial {at}", line=replace(each.line, target=f"fit.py -- --epochs 9 --lr {at}")
        )
        for at, each in enumerate(found)
    ]
    lines = tables.runs_lines(members, 80, time.time())
    assert [line.split()[2:5] for line in lines[1:]] == [["…", "--lr", str(at)] for at in range(3)]


def test_json_has_start_and_project_of_each_run(many, capsys):
    assert cli._main(["runs", "ls", "--json"]) == 0
    newest = json.loads(capsys.readouterr().out)[0]
    assert newest["project"] == str(many) and abs(time.time() - 300 - newest["started_at"]) < 60


def test_trials_stand_under_their_sweep(many, capsys):
    store = RunStore(many)
    ids = sorted(store.ids())
    journal = store.record / "sweeps" / "lr-search" / "study.journal"
    journal.parent.mkdir(parents=True)
    rows = [
        {"op_code": 8, "trial_id": at, "user_attr": {"run": run}}
        for at, run in enumerate([*ids[:2], "20200101-000000-gone"])
    ]
    journal.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = listing.listed(store, Host({}))
    assert [(each.group, each.member) for each in found] == [
        (None, None), (None, None), ("lr-search", None), ("lr-search", "trial 0"), ("lr-search", "trial 1"),
    ]  # fmt: skip
    assert found[2].line.target == "sweep: 2 trials" and found[2].line.status == "1 stopped, 1 failed"


def test_the_page_that_open_opens(many, capsys, monkeypatch):
    for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    run = RunStore(many).find("good")
    (run.folder / "receipt.json").write_text("{}")
    monkeypatch.setattr("seatrial.runs.status.finalise", lambda run, environ: object())
    assert cli._main(["open", "good"]) == 2 and "The page of run" in capsys.readouterr().err
    (run.folder / "receipt.html").write_text("")
    assert cli._main(["open", "good"]) == 0
    printed = capsys.readouterr()
    assert printed.out.strip() == str(run.folder / "receipt.html") and "no browser here" in printed.err
    assert "--bind 127.0.0.1 8000" in printed.err  # the whole network would see the run's folder
    assert cli._main(["open", "good", "--print"]) == 0
    assert capsys.readouterr().err == ""
    assert cli._main(["open", "nothing"]) == 2
