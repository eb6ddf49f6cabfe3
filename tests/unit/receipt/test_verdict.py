"""The end of a run in a terminal: the verdict is in the last lines, and the problems above it."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from cli_project import Project, environment
from seatrial.receipt.model import Receipt
from seatrial.receipt.render import markdown, pages
from seatrial.receipt.render.terminal import render_verdict

SCRIPT = """
import json, os
with open(os.environ["SEATRIAL_EVENTS"], "a") as events:
    for step in range(5):
        print(json.dumps({"step": step, "loss": 1 / (step + 1), "accuracy": 0.618}), file=events)
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path / "project", "local", environment(tmp_path))
    made.write("train.py", SCRIPT)
    return made


def test_run_ends_with_its_verdict_and_verbose_with_the_whole_receipt(project: Project) -> None:
    project.write("seatrial.toml", '[criteria]\naccuracy = ">= 0.99"\nloss = "<= 0.5"\n')
    ended = project.run("train.py", "--gpus", "none")
    lines = ended.stdout.splitlines()
    assert "[✓] Metric loss" in lines
    head = next(number for number, line in enumerate(lines) if line.startswith("[✗] train.py · local"))
    assert "Criteria not met." in lines[head + 1] and "Timeline" not in lines
    assert " ".join(lines[head + 1 :]).replace("    ", "").count("accuracy (0.618, required >= 0.99)") == 1
    assert "accuracy 0.618" in lines[-1] and len(lines) - head <= 5
    assert ended.stderr.splitlines()[-1].startswith("seatrial receipt: ")
    whole = project.run("train.py", "--gpus", "none", "--verbose").stdout
    assert "\nTimeline\n" in whole and "\nWhat ran\n" in whole


def test_quiet_run_prints_failures_alone(project: Project) -> None:
    project.write("seatrial.toml", "")
    fine = project.run("train.py", "--gpus", "none", "--quiet")
    assert (fine.stdout, fine.stderr) == ("", "")
    project.write("fails.py", "print('so far')\nraise SystemExit(3)\n")
    failed = project.run("fails.py", "--gpus", "none", "-q", exit_code=1)
    assert failed.stdout.startswith("so far\n") and "[✗] fails.py" in failed.stdout
    assert failed.stderr.startswith("seatrial receipt: ")


def test_no_color_is_the_scripts_own_behind_dashes(project: Project) -> None:
    project.write("seatrial.toml", "")
    for words in (["--no-color", "runs", "ls"], ["runs", "ls", "--no-color"]):
        ended = project.cli(*words, FORCE_COLOR="1")
        assert "\x1b[" not in ended.stdout + ended.stderr
    own = project.write("prints.py", "import sys; print(sys.argv)\n")
    printed = project.run(own.name, "--gpus", "none", "--", "--no-color").stdout
    assert "--no-color" in printed and len(re.findall(r"\d m?s\b", printed)) == 1, "its time is shown once"


def test_warnings_above_a_failed_runs_output_do_not_stand_below_it_again() -> None:
    kept = (Path(__file__).parents[3] / "docs" / "receipts").rglob("receipt.json")
    receipts = [Receipt.model_validate(json.loads(path.read_text())) for path in kept]
    for failed in (True, False):
        receipt = next(each for each in receipts if (each.outcome.id == "failed") is failed)
        out = io.StringIO()
        render_verdict(receipt.changed(warnings=("before", "after")), Console(file=out, width=80), shown=["before"])
        assert ("[!] before" in out.getvalue()) is not failed and "[!] after" in out.getvalue()


def test_recorded_receipts_still_render_and_have_their_finding_above_the_verdict() -> None:
    kept = sorted((Path(__file__).parents[3] / "docs" / "receipts").rglob("receipt.json"))
    assert kept
    for path in kept:
        receipt = Receipt.model_validate(json.loads(path.read_text()))
        assert receipt.outcome.sentence and pages.render(receipt) and markdown.render(receipt)
        out = io.StringIO()
        render_verdict(receipt, Console(file=out, width=80))
        lines = out.getvalue().splitlines()
        headline = max(at for at, line in enumerate(lines) if line.startswith(("[✓] ", "[✗] ", "[!] ", "[-] ")))
        assert headline >= len(lines) - 6 and " · " in " ".join(lines[headline:]), path
        errors = [finding for finding in receipt.findings[:1] if finding.severity == "error"]
        assert all(finding.message.split()[0] in out.getvalue() for finding in errors), path
        long = [line for line in lines if len(line) > 80]  # a command and a word stay whole
        assert all(line.startswith("    fix    seatrial ") or " " not in line.strip() for line in long), path
