"""Poetry's own tables, as written by Poetry 1 and by people."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.errors import ConfigError
from seatrial.images.requirements.pyproject import pyproject_requirements, requires_python
from tables import cases

HEAD = '[tool.poetry]\nname = "lab"\nversion = "0.1"\n'


def project(folder: Path, text: str) -> Path:
    file = folder / "pyproject.toml"
    file.write_text(HEAD + text)
    return file


def test_carets_tildes_tables_and_markers(tmp_path: Path) -> None:
    file = project(
        tmp_path,
        """
[tool.poetry.dependencies]
python = "^3.9"
numpy = "^1.26"
tqdm = "*"
einops = "~0.7"
torch = {version = "^2.1", source = "pytorch"}
transformers = {extras = ["torch"], version = "4.40.0"}
tomli = {version = "^2", markers = "python_version < '3.11'"}
scipy = [{version = "^1.10", python = "<3.12"}, {version = "^1.13", python = ">=3.12"}]
lab-core = {path = "../core", develop = true}
segmenter = {git = "https://github.com/lab/segmenter.git", rev = "abc123"}
wandb = {version = "^0.17", optional = true}
either = "^1.0 || ^3.0"

[tool.poetry.dev-dependencies]
pytest = "^8"

[tool.poetry.group.plots.dependencies]
matplotlib = "^3.8"
""",
    )
    assert pyproject_requirements(file, ["matplotlib"]) == (
        "numpy<2,>=1.26",
        "tqdm",
        "einops<0.8,>=0.7",
        "torch<3,>=2.1",
        "transformers[torch]==4.40.0",
        'tomli<3,>=2; python_version < "3.11"',
        'scipy<2,>=1.10; python_version < "3.12"',
        'scipy<2,>=1.13; python_version >= "3.12"',
        "segmenter @ git+https://github.com/lab/segmenter.git@abc123",
        "either<4,>=3.0",
        "matplotlib<4,>=3.8",
    )
    assert str(requires_python(file)) == "<4,>=3.9"


@cases("wish", "specifier")
def test_constraint_is_translated(tmp_path: Path, wish: str, specifier: str) -> None:
    file = project(tmp_path, f'[tool.poetry.dependencies]\nx = "{wish}"\n')
    assert pyproject_requirements(file, []) == (f"x{specifier}",)


def test_a_project_table_wins(tmp_path: Path) -> None:
    file = project(tmp_path, '[tool.poetry.dependencies]\nx = "^1"\n[project]\nname = "lab"\ndependencies = ["y"]\n')
    assert pyproject_requirements(file, []) == ("y",)


@cases("line")
def test_nonsense_is_one_sentence(tmp_path: Path, line: str) -> None:
    file = project(tmp_path, f"[tool.poetry.dependencies]\n{line}\n")
    with pytest.raises(ConfigError, match="not a version that Poetry knows"):
        pyproject_requirements(file, [])
        requires_python(file)


@pytest.mark.parametrize("text", ["", "[tool.poetry.dependencies]\n", "[tool.poetry]\n".replace("[tool.poetry]", "")])
def test_no_list(tmp_path: Path, text: str) -> None:
    assert pyproject_requirements(project(tmp_path, text), []) in (None, ())
