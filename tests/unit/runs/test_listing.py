"""A line of a listing: what it calls a run that has ended."""

import json
import time

import pytest

from seatrial import cli
from seatrial.cli import runs_table
from seatrial.compose import listing
from seatrial.runs.store import RunStore
from seatrial.system.host import Host

ENDED = {"id": "x", "name": None, "target": "train.py", "backend": "docker", "gpus": 0, "seconds": 1.0}


@pytest.mark.parametrize(
    ("exit_code", "headline", "shown"),
    [
        (0, "passed, 1 warning", "passed, 1 warning"),
        (0, "criteria not met", "criteria not met"),
        (4, "criteria not met", "failed: criteria not met"),
        (1, "The target exited with 1", "failed: The target exited with 1"),
        (0, None, "done"),
        (1, None, "failed: …"),
    ],
)
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
    assert failed.endswith("failed: The target exited with 1")
    [unmet] = listed(capsys, "--status", "unmet")
    assert "unmet" in unmet and unmet.endswith("Metric accuracy (0.6, required >= 0.99)")
    assert len(listed(capsys, "--status", "failed,stopped")) == 2
    assert len(listed(capsys, "--status", "failed,stopped", "-n", "1")) == 1
    assert cli._main(["runs", "ls", "--status", "broken"]) == 2


def test_only_those_since(many, capsys):
    assert len(listed(capsys, "--since", "10m")) == 1
    assert len(listed(capsys, "--since", "2h")) == 2
    assert len(listed(capsys, "--since", "1d")) == 4
    assert cli._main(["runs", "ls", "--since", "soon"]) == 2
    assert cli._main(["runs", "ls", "--since", "1s"]) == 0
    assert "No such runs" in capsys.readouterr().err


def test_age_and_a_narrow_terminal(many, capsys):
    found = listing.listed(RunStore(many), Host({}))
    wide, narrow = (runs_table.table(found, width, time.time()) for width in (160, 60))
    assert wide[0].split() == ["RUN", "NAME", "TARGET", "ON", "GPUS", "AGE", "TIME", "STATUS"]
    assert [line.split()[5] for line in wide[1:3]] == ["5m", "1h"]
    assert narrow[0].split() == ["RUN", "TARGET", "AGE", "STATUS"]
    assert narrow[1].startswith("good ") and all(len(line) <= 60 for line in narrow) and narrow[2].endswith("…")


def test_the_page_that_open_opens(many, capsys, monkeypatch):
    for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    run = RunStore(many).find("good")
    (run.folder / "receipt.json").write_text("{}")
    monkeypatch.setattr("seatrial.runs.finish.finalise", lambda run, environ: object())
    assert cli._main(["open", "good"]) == 2 and "The page of run" in capsys.readouterr().err
    (run.folder / "receipt.html").write_text("")
    assert cli._main(["open", "good"]) == 0
    said = capsys.readouterr()
    assert said.out.strip() == str(run.folder / "receipt.html") and "no browser here" in said.err
    assert "--bind 127.0.0.1 8000" in said.err  # the whole network would see the run's folder
    assert cli._main(["open", "good", "--print"]) == 0
    assert capsys.readouterr().err == ""
    assert cli._main(["open", "nothing"]) == 2
