"""A script started from a folder of its repository imports what lies next to that folder."""

from pathlib import Path

import pytest

from seatrial.errors import ConfigError
from seatrial.images.plan import plan_image
from seatrial.job.model import Job, Target
from seatrial.job.script import script_facts


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / ".git").mkdir()
    (tmp_path / "pointy").mkdir()
    (tmp_path / "pointy" / "__init__.py").write_text("")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "train.py").write_text("import torch\nimport pointy\n")
    return tmp_path


def plan(project: Path, script: str) -> tuple[str, ...]:
    target = Target(kind="script", value=script)
    facts = script_facts(target, project)
    made, _ = plan_image(Job(project=project, target=target), script=facts, cpu_only=True)
    return made.warnings


def test_a_module_next_to_the_folder_is_not_taken_from_an_index(repository: Path) -> None:
    with pytest.raises(ConfigError, match=r"^train\.py:2 imports pointy, which lies next to this folder") as refusal:
        plan(repository / "tools", "train.py")
    assert refusal.value.run == "seatrial run -C .. …"


def test_with_the_whole_repository_it_is_found(repository: Path) -> None:
    assert plan(repository, "tools/train.py") == ()


def test_a_folder_above_that_is_no_repository_is_not_looked_into(repository: Path) -> None:
    (repository / ".git").rmdir()
    assert plan(repository / "tools", "train.py") == (
        "pointy is a guess: train.py:2 imports pointy, and seatrial does not know its package",
    )
