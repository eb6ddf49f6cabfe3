"""``doctor --report``: Markdown to paste, what is wrong first, without names and secrets, whatever an engine says."""

from __future__ import annotations

import json
from pathlib import Path

from machines import healthy
from seatrial import cli
from seatrial.doctor import report
from seatrial.doctor.examine import examine
from seatrial.doctor.report import markdown


def test_the_broken_check_comes_first_with_its_fix(tmp_path: Path) -> None:
    host = healthy(tmp_path)
    host.remove("/sys/bus/pci/devices/0000:10:00.0")
    host.nvml_error = 9
    host.environ.update(HOME="/data/zebedee", USER="zebedee", CUDA_NOTE="hf_" + "a1b2c3d4" * 4)
    machine = host.machine()
    text = markdown(report.full(examine(machine), machine))
    head = text.partition("<details>")[0]
    assert "GPUs: none seen; driver 580.159.04" in head and "**broken:" in head
    assert "fix: `" in head
    assert "zebedee" not in text and "a1b2c3d4" not in text
    assert text.count("<details>") == text.count("</details>") == 2


def test_what_an_engine_prints_ends_no_block(tmp_path: Path) -> None:
    host = healthy(tmp_path)
    machine = host.machine()
    content = report.full(examine(machine), machine)
    check = {**content["checks"][0], "status": "broken", "line": "a <details> b"}
    check["findings"] = [{"message": "m", "cause": None, "fix": None, "evidence": ["```", "````</details>"]}]
    text = markdown({**content, "checks": [check]})
    assert "a &lt;details> b" in text
    assert "\n`````text\n```\n````</details>\n`````\n" in text


def test_an_issue_can_hold_it(tmp_path: Path) -> None:
    """GitHub takes 65,536 characters."""
    machine = healthy(tmp_path).machine()
    assert len(markdown(report.full(examine(machine), machine))) < 30_000


def test_the_command_line(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["doctor", "--host-only", "--on", "local"]
    cli._main([*words, "--report"])
    printed = capsys.readouterr().out
    assert printed.startswith("### seatrial doctor\n") and "[✓]" not in printed
    cli._main([*words, "--report", "report.md"])
    cli._main([*words, "--report", "report.json"])
    shown = capsys.readouterr().out
    assert "[" in shown and "###" not in shown
    assert Path("report.md").read_text().startswith("### seatrial doctor\n")
    assert json.loads(Path("report.json").read_text())["facts"]["system"]
    assert cli._main([*words, "--json", "--report"]) == 2
