"""A project's files and its script's imports → what its image needs, or the error that names file and line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from image_plans import write_files
from seatrial.errors import ConfigError
from seatrial.images.requirements.adjust import for_cuda
from seatrial.images.requirements.pip_format import Needs, Requirements
from seatrial.images.requirements.project import project_needs
from seatrial.job.model import Target
from seatrial.job.script import ScriptFacts, script_facts
from tables import constant

NEEDS = constant(__file__, "NEEDS")


def facts_of(row: dict[str, Any]) -> ScriptFacts:
    facts: dict[str, Any] = {"imports": row.get("imports", ()), **row.get("facts", {})}
    return ScriptFacts(**{key: tuple(value) if isinstance(value, list) else value for key, value in facts.items()})


@pytest.mark.parametrize("name", NEEDS)
def test_needs_of_a_project(tmp_path: Path, name: str) -> None:
    row = NEEDS[name]
    write_files(tmp_path, row.get("files", {}))
    project = tmp_path / row.get("project", "")
    folder = (project / row.get("folder", "")).resolve()
    if "error" in row:
        with pytest.raises(ConfigError, match=row["error"]):
            project_needs(project, facts_of(row), folder)
        return
    found = project_needs(project, facts_of(row), folder)
    lines = list(found.requirements.lines)
    assert lines == row.get("lines", lines)
    assert lines[-len(row.get("ends", lines)) :] == row.get("ends", lines)
    assert lines[: len(row.get("begins", ()))] == row.get("begins", [])
    for key in ("constraints", "options"):
        assert list(getattr(found.requirements, key)) == row.get(key, [])
    assert found.source == row.get("source", found.source)
    assert str(found.python) == row.get("python", str(found.python))
    assert row.get("reason", "") in found.reason and row.get("choice", "") in found.choice.reason
    assert list(found.warnings) == row.get("warnings", list(found.warnings))
    assert all(re.search(re.escape(part), "\n".join(found.warnings)) for part in row.get("warns", ()))


def test_a_module_that_its_own_folder_does_not_bring_is_looked_for_once(tmp_path: Path) -> None:
    write_files(tmp_path, {"sub/deep/__init__.py": ""})
    script, read = ScriptFacts(imports=("deep",), where={"deep": "-m deep"}), list[str]()

    def reread(folders: Iterable[str]) -> ScriptFacts:
        read.extend(folders)
        assert len(read) < 5
        return script

    project_needs(tmp_path, script, tmp_path, reread=reread)
    assert read == ["sub"]


def test_a_conda_environment_in_utf_16_is_read(tmp_path: Path) -> None:
    (tmp_path / "environment.yml").write_bytes("dependencies:\r\n  - pytorch=2.0.1\r\n".encode("utf-16"))
    assert project_needs(tmp_path, ScriptFacts(), tmp_path).requirements.lines == ("torch==2.0.1",)


def test_releases_of_a_lock_of_pipenv_are_the_authors_for_what_the_pipfile_lists(tmp_path: Path) -> None:
    rows = '"torch": {"version": "==2.0.1"}, "idna": {"version": "==3.4"}, "own": {"path": "."}, "x": {"version": null}'
    write_files(
        tmp_path,
        {"Pipfile": "[packages]\ntorch = '*'\nown = '*'\nx = '*'\n", "Pipfile.lock": f'{{"default": {{{rows}}}}}'},
    )
    found = project_needs(tmp_path, ScriptFacts(imports=("torch", "pandas")), tmp_path)
    assert found.named == {"torch": ("2.0.1", "Pipfile.lock")}
    for broken in ("[" * 100_000, "not JSON", '{"default": [1]}'):
        (tmp_path / "Pipfile.lock").write_text(broken)
        assert project_needs(tmp_path, ScriptFacts(), tmp_path).named == {}


def test_a_list_that_is_a_link_within_the_project(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "requirements.txt").write_text("scipy\n")
    (tmp_path / "sub/requirements.txt").symlink_to("../requirements.txt")
    found = project_needs(tmp_path, ScriptFacts(imports=("scipy",)), tmp_path / "sub")
    assert found.requirements.lines == ("scipy",)


@pytest.mark.parametrize(
    ("line", "cuda", "chosen"),
    [
        ("nvidia-dali-cuda120", "13.0", "nvidia-dali-cuda130"),
        ("cupy-cuda11x", "12.6", "cupy-cuda12x"),
        ("cudf-cu12", "12.8", "cudf-cu12"),
        ("cudf-cu12", "11.8", "cudf-cu12"),
        ("cupy-cuda110", "12.6", "cupy-cuda12x"),
        ("cupy-cuda11x==12.3.0", "13.0", "cupy-cuda11x==12.3.0"),
        ("cupy-cuda102", "11.8", "cupy-cuda11x"),
        ("cupy-cuda111", "11.8", "cupy-cuda11x"),
        ("nvidia-dali-cuda102", "12.4", "nvidia-dali-cuda120"),
    ],
)
def test_a_build_for_cuda_is_the_one_of_the_plan(line: str, cuda: str, chosen: str) -> None:
    found = for_cuda(Needs(Requirements(lines=(line,)), "a list", "it exists"), cuda)
    assert found.requirements.lines == (chosen,)


@pytest.mark.parametrize(
    ("init", "way"),
    [
        ("app/__init__.py", "-m ml.train: ml lies in the project's app/: seatrial run -m app.ml.train"),
        ("x.py", "-m ml.train imports ml, which lies in the project's app/: unless the script adds that folder to "),
    ],
)
def test_a_module_that_lies_in_another_package_is_started_by_its_whole_name(
    tmp_path: Path, init: str, way: str
) -> None:
    write_files(tmp_path, dict.fromkeys((init, "app/ml/__init__.py", "app/ml/train.py", "requirements.txt"), ""))
    facts = script_facts(Target(kind="module", value="ml.train"), tmp_path)
    [warning] = project_needs(tmp_path, facts, tmp_path).warnings
    assert warning.startswith(way)


def test_a_package_inside_a_folder_of_its_name_that_pages_install_is_named_with_its_path(tmp_path: Path) -> None:
    files = dict.fromkeys(("net/setup.py", "net/net/data/loader.py", "datasets/cats.csv"), "")
    source = "from net.data import loader\nfrom datasets.features import Image\n"
    write_files(tmp_path, {**files, "scripts/train.py": source})
    facts = script_facts(Target(kind="script", value="scripts/train.py"), tmp_path)
    found = project_needs(tmp_path, facts, tmp_path / "scripts")
    assert found.requirements.lines == ("datasets",)
    assert found.warnings == (
        "scripts/train.py:1 imports net, which lies in the project's net/: unless the script adds that folder to "
        "sys.path, run with -e PYTHONPATH=net",
    )
