"""Scripts bound on purpose: what was recorded of them on GPUs, judged by the diagnosis of now, and their headers.

``python benchmarks/diagnosis.py OUT --again EVIDENCE --pack tests/recorded/diagnosis/h200.jsonl.gz`` records anew.
"""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from judged_again import judged_again, read_packed
from seatrial.diagnosis import MEANING

TESTS = Path(__file__).resolve().parents[2]
BOUND = TESTS / "lab" / "bound"
SCRIPTS = {path.stem: path for path in sorted(BOUND.rglob("*.py"))}
RECORDED = read_packed(TESTS / "recorded" / "diagnosis" / "h200.jsonl.gz")

#: Recorded, and not right: kept, and in docs/benchmarks.md. One that becomes right has to leave.
WRONG: dict[str, str] = {}


def header(name):
    first = SCRIPTS[name].read_text().partition("\n")[0]
    return dict(part.strip().split(": ", 1) for part in first.removeprefix("# ").split(";"))


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_names_its_bound_and_is_short(name):
    source = SCRIPTS[name].read_text()
    assert header(name)["expect"] in MEANING
    assert ast.get_docstring(ast.parse(source)) and len(source.splitlines()) <= 62


def test_every_cause_has_a_script():
    assert {header(name)["expect"] for name in SCRIPTS} == set(MEANING)


@pytest.mark.parametrize("name", RECORDED)
def test_what_was_recorded_on_a_gpu(name, tmp_path):
    (tmp_path / f"{name}.py").write_text(SCRIPTS[name].read_text())
    receipt = judged_again(RECORDED[name], tmp_path)
    found, expected = receipt["diagnosis"], header(name)
    shown = " ".join([*found["evidence"], *(advice["change"] for advice in found["advice"])])
    right = found["cause"] == expected["expect"] and expected.get("shows", "").lower() in shown.lower()
    assert right != (name in WRONG), found
    assert found["evidence"] and not any("up to" in advice["gain"] for advice in found["advice"])


@pytest.mark.slow
@pytest.mark.torch
def test_scripts_that_never_come_to_a_gpu_run_without_one(tmp_path):
    """The same judged as if a GPU had been there; a CPU build of torch adds a reason."""
    command = [sys.executable, str(TESTS.parent / "benchmarks" / "diagnosis.py"), str(tmp_path / "out")]
    command += ["--gpus", "none", "--seconds", "3", "--budget-s", "280", "--", "--on", "local"]
    subprocess.run(command, timeout=290, check=False, capture_output=True)
    scripts = json.loads((tmp_path / "out" / "diagnosis.json").read_text())["scripts"]
    judged = {name: result["right"] for name, result in scripts.items() if "right" in result}
    assert len(judged) >= 8 and all(judged.values()), scripts
