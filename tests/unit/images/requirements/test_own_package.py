"""``-e .`` in requirements.txt means the project: its modules are there already, what it depends on is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.errors import ConfigError
from seatrial.images.plan import plan_image
from seatrial.job.model import Job, Target
from seatrial.job.script import script_facts
from tables import cases

SETUP = (
    "from setuptools import setup\n"
    'setup(name="my-net", install_requires=["torch>=2", "six==1.16.0"], extras_require={"dev": ["attrs"]},\n'
    '      python_requires="<3.11")\n'
)
PYPROJECT = (
    '[project]\nname = "my_net"\ndependencies = ["torch"]\n[project.optional-dependencies]\n'
    'dev = ["six"]\nall = ["my-net[dev]", "attrs"]\n'
)
SETUP_CFG = (
    "[options]\ninstall_requires =\n    torch  # the framework\n    six; python_version > '3'\n\n"
    "[options.extras_require]\nDev_Tools = attrs\n"
)


def installed(project: Path, requirements: str, **files: str) -> tuple[list[str], tuple[str, ...]]:
    """(what pip is asked for, warnings)."""
    for name, text in {"requirements.txt": requirements, "train.py": "import torch\n", **files}.items():
        path = project / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    job = Job(project=project, target=Target(kind="script", value="train.py"))
    plan, _ = plan_image(job, script=script_facts(job.target, project), cpu_only=True)
    lines = [line for text in plan.context_texts.values() for line in text.splitlines()]
    return [line for line in lines if not line.startswith(("torch", "numpy"))], plan.warnings


@cases("line", "files", "expected")
def test_the_project_itself(tmp_path: Path, line: str, files: dict[str, str], expected: list[str]) -> None:
    lines, warnings = installed(tmp_path, f"torch\n{line}\n", **files)
    assert sorted(lines) == sorted(expected)
    assert warnings == ()


def test_its_python_counts(tmp_path: Path) -> None:
    installed(tmp_path, "-e .\n", **{"setup.py": SETUP})
    job = Job(project=tmp_path, target=Target(kind="script", value="train.py"))
    plan, _ = plan_image(job, script=script_facts(job.target, tmp_path), cpu_only=True)
    assert plan.base == "python:3.10-slim-bookworm"


def test_unknown_extra_gets_a_warning(tmp_path: Path) -> None:
    lines, warnings = installed(tmp_path, "-e .[nope]\n", **{"setup.py": SETUP})
    assert "six==1.16.0" in lines
    assert warnings == ("the project has no extra 'nope', only dev",)


@pytest.mark.parametrize("line", ["-e ./lib", "-e lib", "-e ..", "../", "-e .[a", "-e /src/net", "./.."])
def test_another_folder_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "lib").mkdir()
    with pytest.raises(ConfigError, match=r"requirements\.txt:1: ") as caught:
        installed(tmp_path, f"{line}\n")
    assert caught.value.run


def test_setup_cfg_alone_lists_the_packages(tmp_path: Path) -> None:
    installed(tmp_path, "", **{"setup.cfg": SETUP_CFG})
    (tmp_path / "requirements.txt").unlink()
    job = Job(project=tmp_path, target=Target(kind="script", value="train.py"))
    _, choices = plan_image(job, script=script_facts(job.target, tmp_path), cpu_only=True)
    packages = next(choice for choice in choices if choice.what == "packages")
    assert packages.value == "torch, six; python_version > '3'"


@pytest.mark.parametrize("text", ["no section\n", "[options]\ninstall_requires = a b c\n", "\x00"])
def test_an_odd_setup_cfg_is_one_sentence(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"setup\.cfg") as caught:
        installed(tmp_path, "-e .\n", **{"setup.cfg": text})
    assert caught.value.run
