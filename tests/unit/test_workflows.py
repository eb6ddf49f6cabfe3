"""GitHub's workflows and issue forms: each command in them is one that there is here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def load(path: Path) -> dict[Any, Any]:
    loaded = yaml.safe_load(path.read_text())
    assert isinstance(loaded, dict)
    return loaded


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_make_target_is_in_the_makefile(path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text().replace("$(VENV)", ".venv")
    targets = set(re.findall(r"^([\w./-]+):(?!=)", makefile, re.MULTILINE))
    steps = [step for job in load(path)["jobs"].values() for step in job["steps"]]
    made = {words.split()[-1] for step in steps if (words := step.get("run", "")).startswith("make ")}
    assert made and made <= targets


def test_the_pythons_are_those_of_the_package() -> None:
    classified = set(re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text()))
    ci = load(ROOT / ".github" / "workflows" / "ci.yml")
    assert set(ci["jobs"]["tests"]["strategy"]["matrix"]["python"]) == classified
    wheel = ci["jobs"]["wheel"]["steps"]
    assert set(wheel[-1]["env"]["SEATRIAL_WHEEL_PYTHONS"].split(",")) == classified
    there = [step["with"]["python-version"].split() for step in wheel if "setup-python" in step.get("uses", "")]
    assert [set(pythons) for pythons in there] == [classified]


def test_only_the_publishing_job_may_do_more_than_read() -> None:
    for path in WORKFLOWS:
        workflow = load(path)
        assert workflow["permissions"] == {"contents": "read"}
        more = {name for name, job in workflow["jobs"].items() if "permissions" in job}
        assert more == ({"publish"} if path.stem == "release" else set())
    assert "secrets." not in "".join(path.read_text() for path in WORKFLOWS)


def test_the_form_for_bugs_asks_for_a_report() -> None:
    form = load(ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml")
    requested = {part["id"]: part for part in form["body"] if "id" in part}
    assert (
        requested["report"]["validations"]["required"]
        and "doctor --report" in requested["report"]["attributes"]["label"]
    )
