"""Which framework release and build a project gets on a machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from seatrial.errors import ConfigError, GpuContractError
from seatrial.images.requirements.pip_format import Needs, Requirements
from seatrial.images.resolve.framework import Resolved, resolve_frameworks
from seatrial.stack.machine import TargetMachine, parse_target
from tables import constant

CHOSEN = constant(__file__, "CHOSEN")


def resolved(row: dict[str, Any]) -> Resolved:
    given = (tuple(row.get(key, ())) for key in ("lines", "constraints", "options"))
    listed = Requirements(*given, python=SpecifierSet(row.get("requires", "")))
    machine = row.get("machine", "any")
    return resolve_frameworks(
        Needs(listed, "requirements.txt", "it is there"),
        frozenset(row.get("imports", ["torch"])),
        machine={"cpu": None, "any": TargetMachine()}[machine] if machine in ("cpu", "any") else parse_target(machine),
        own_sources=row.get("own_sources", False),
        python=row.get("python"),
        mirror=row.get("mirror"),
    )


@pytest.mark.parametrize("name", CHOSEN)
def test_frameworks_of_a_project(name: str) -> None:
    row = CHOSEN[name]
    if "error" in row:
        with pytest.raises((ConfigError, GpuContractError), match=row["error"]) as refused:
            resolved(row)
        assert row.get("cause", "") in (refused.value.cause or "")
        assert (refused.value.run or "").startswith(row.get("run", ""))
        return
    found = resolved(row)
    lines = list(found.requirements.lines)
    assert lines == row.get("found", lines)
    assert lines[:1] == [row.get("begins", lines[0])] and lines[-1:] == [row.get("ends", lines[-1])]
    assert list(found.requirements.constraints) == row.get("found_constraints", list(found.requirements.constraints))
    assert (found.index or "") == row.get("index", found.index or "")
    assert found.stack.python == row.get("python_found", found.stack.python)
    assert row.get("computes") in (None, found.stack.wheel and found.stack.wheel.framework)
    assert row.get("build") in (None, *(choice.value for choice in found.choices))
    assert row.get("reason", "") in " ".join(choice.reason for choice in found.choices)
    assert row.get("warns", "") in " ".join(found.warnings)


@pytest.mark.parametrize(
    ("file", "text", "edit"),
    [
        ("environment.yml", "- python=3.8.15=h_1\n", "environment.yml:1  python=3.8.15=h_1 → python=3.11"),
        ("Pipfile", 'python_version = "3.8"\n', 'Pipfile:1  python_version = "3.8" → python_version = "3.11"'),
        (
            "pyproject.toml",
            '[tool.mypy]\npython_version = "3.8"\n[project]\nrequires-python = "==3.8.*"\n',
            'pyproject.toml:4  requires-python = "==3.8.*" → requires-python = "==3.11.*"',
        ),
        ("setup.cfg", "python_requires = >=3.8\n", "require Python 3.11 in setup.cfg"),
    ],
)
def test_a_python_that_excludes_the_framework_is_edited_where_the_project_names_it(
    tmp_path: Path, file: str, text: str, edit: str
) -> None:
    (tmp_path / file).write_text(text)
    needs = Needs(Requirements(("jax[cuda12]==0.4.30",), python=SpecifierSet("==3.8.*")), file, "", project=tmp_path)
    with pytest.raises(ConfigError, match=r"has wheels for Python 3\.9 to") as refused:
        resolve_frameworks(needs, frozenset(["jax"]), machine=TargetMachine(), own_sources=False)
    assert refused.value.run == edit
