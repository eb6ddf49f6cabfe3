"""A file that the target did not find: the option that brings it, where one does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fakes import a_plan
from seatrial.findings.match import match_text
from seatrial.job.model import Job, Target
from seatrial.receipt.evidence import RunEvidence, gather
from seatrial.receipt.logs import Output
from seatrial.receipt.outcome import ExitCause
from seatrial.receipt.sections.findings import _missing_file as missing_file
from seatrial.receipt.sections.measured import measure

ABSENT = "FileNotFoundError: [Errno 2] No such file or directory: '{}'"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """``lab/`` with code, and data inside and beside it."""
    for name in ("lab/code/fit.py", "lab/code/words.txt", "lab/sets/a/points.csv", "beside/more.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path / "lab"


def case(project: Path, path: str, *, backend: str = "docker", module: str = "", code: int = 1) -> RunEvidence:
    target = Target(kind="module", value=module) if module else Target(kind="script", value="code/fit.py")
    plan = a_plan(job=Job(project=project, target=target), backend=backend)
    plan = plan if backend == "docker" else plan.model_copy(update={"image": None})
    evidence = gather([], 0)
    text = ABSENT.format(path)
    return RunEvidence(
        plan=plan,
        evidence=evidence,
        output=Output(exception=text, findings=tuple(match_text(text))),
        measurements=measure(evidence, [], None),
        state=None,
        engine_findings=(),
        run_dir=project,
        image=None,
        cause=ExitCause(id="target-failed", words="x", target_exit_code=code),
    )


@pytest.mark.parametrize(
    ("path", "fix"),
    [
        ("words.txt", "seatrial run … --workdir /workspace/code"),
        ("../sets/a/points.csv", "seatrial run … --workdir /workspace/code"),
        ("../../beside/more.csv", "seatrial run … --mount FOLDER:/beside"),
        ("../beside/more.csv", "seatrial run … --mount ../beside:/beside"),
        ("/home/me/lab/sets/a/points.csv", "seatrial run … --mount ./sets:/home/me/lab/sets"),
        ("/mnt/none.csv", "seatrial run … --mount FOLDER:/mnt"),
        ("/workspace/sets/none.csv", "put it into sets/ of the project, or pass the script its path"),
        ("sets/none.csv", "put it into sets/ of the project, or pass the script its path"),
    ],
)
def test_what_brings_it(project: Path, path: str, fix: str) -> None:
    found = missing_file(case(project, path))
    assert found is not None
    assert (found.id, found.fix) == ("file-missing", fix)
    assert found.message == f"The script found no file {path}"


def test_a_module_stays_where_it_is_found_from(project: Path) -> None:
    found = missing_file(case(project, "../sets/a/points.csv", module="code.fit"))
    assert found is not None and found.fix == "seatrial run … --mount ./sets:/sets"
    found = missing_file(case(project, "words.txt", module="code.fit"))
    assert found is not None and found.fix.startswith("put it into ./ of the project")


def test_on_this_machine_nothing_is_mounted(project: Path) -> None:
    found = missing_file(case(project, "../nowhere/x.csv", backend="local"))
    assert found is not None and "--mount" not in found.fix and str(project.parent / "nowhere/x.csv") in found.cause
    found = missing_file(case(project, "/nowhere/x.csv", backend="local"))
    assert found is not None and found.fix == "put it into /nowhere/, or pass the script its path"
    beside = missing_file(case(project, "words.txt", backend="local"))
    assert beside is not None and beside.fix == "seatrial run … --workdir code"


@pytest.mark.parametrize("backend", ["docker", "local"])
def test_a_program_that_is_not_there_is_no_file_of_the_project(project: Path, backend: str) -> None:
    made = case(project, "blender", backend=backend)
    made = replace(made, output=replace(made.output, raised_in="_execute_child"))
    found = missing_file(made)
    assert found is not None and found.id == "program-missing" and "blender" in found.message
    assert found.fix.startswith("sudo apt-get install blender" if backend == "local" else "in seatrial.toml: [image]")
    script = case(project, "./tools/fetch.sh", backend=backend)
    found = missing_file(replace(script, output=replace(script.output, raised_in="_execute_child")))
    assert found is not None and found.id == "file-missing"


def test_no_finding_for_another_end_nor_for_a_program(project: Path) -> None:
    assert missing_file(case(project, "x.csv", code=0)) is None
    assert missing_file(case(project, "ffmpeg")) is None
    other = case(project, "x.csv")
    assert missing_file(replace(other, output=Output(exception="ValueError: x"))) is None
    assert missing_file(replace(other, output=Output())) is None
