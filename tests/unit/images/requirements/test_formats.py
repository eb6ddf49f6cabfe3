"""Lists of Poetry, and the list inside a script."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.errors import ConfigError
from seatrial.images.requirements.other_formats import read_inline
from seatrial.images.requirements.project import project_needs
from seatrial.images.requirements.pyproject import read_pyproject, requires_python
from seatrial.job.script import ScriptFacts
from tables import cases, constant

HEAD = '[tool.poetry]\nname = "lab"\nversion = "0.1"\n'


def project(folder: Path, text: str) -> Path:
    file = folder / "pyproject.toml"
    file.write_text(HEAD + text)
    return file


def lines(file: Path, *imported: str) -> tuple[str, ...]:
    listed = read_pyproject(file, imported)
    assert listed is not None
    return listed.lines


def test_carets_tildes_tables_and_markers(tmp_path: Path) -> None:
    text, expected = constant(__file__, "DEPENDENCIES").values()
    file = project(tmp_path, text)
    assert lines(file, "matplotlib") == expected
    assert str(requires_python(file)) == "<4,>=3.9"


@cases("wish", "specifier")
def test_constraint_is_translated(tmp_path: Path, wish: str, specifier: str) -> None:
    file = project(tmp_path, f'[tool.poetry.dependencies]\nx = "{wish}"\n')
    assert lines(file) == (f"x{specifier}",)


def test_a_project_table_wins(tmp_path: Path) -> None:
    file = project(tmp_path, '[tool.poetry.dependencies]\nx = "^1"\n[project]\nname = "lab"\ndependencies = ["y"]\n')
    assert lines(file) == ("y",)


@cases("line")
def test_nonsense_is_one_sentence(tmp_path: Path, line: str) -> None:
    file = project(tmp_path, f"[tool.poetry.dependencies]\n{line}\n")
    with pytest.raises(ConfigError, match="not a version that Poetry knows"):
        lines(file)
        requires_python(file)


@pytest.mark.parametrize(("at", "rest"), [("", ""), ("@v0.1", ', rev = "v0.1"')])
def test_an_address_in_place_of_a_version_has_the_edit_that_poetry_reads(tmp_path: Path, at: str, rest: str) -> None:
    file = project(tmp_path, f'[tool.poetry.dependencies]\nhaiku = "git+https://x.org/haiku{at}"\n')
    with pytest.raises(ConfigError, match="not a version that Poetry knows") as it:
        lines(file)
    edit = str(it.value.run).rpartition(" → ")[2]
    assert edit == f'haiku = {{git = "https://x.org/haiku"{rest}}}'
    assert lines(project(tmp_path, f"[tool.poetry.dependencies]\n{edit}\n"))[0].startswith("haiku @ git+https://x.org")


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_what_a_script_lists_comes_before_the_projects_lists(tmp_path: Path, ends: str) -> None:
    (tmp_path / "requirements.txt").write_text("pandas==1.0\n")
    file = tmp_path / "train.py"
    file.write_bytes(constant(__file__, "SCRIPT")["text"].replace("\n", ends).encode())
    needs = project_needs(tmp_path, ScriptFacts(imports=("humanize",)), tmp_path, file=file)
    assert needs.requirements.lines == ("humanize>=4", "shapes @ https://host/shapes.zip")
    assert (needs.source, str(needs.python)) == ("train.py", ">=3.12")


@cases("text")
def test_a_script_that_lists_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.py").write_text(text)
    assert read_inline(tmp_path / "train.py", tmp_path) is None


@cases("inside", "printed")
def test_a_list_that_cannot_be_read(tmp_path: Path, inside: str, printed: str) -> None:
    lines = "".join(f"# {line}\n" for line in inside.splitlines())
    (tmp_path / "train.py").write_text(f"# /// script\n{lines}# ///\n")
    with pytest.raises(ConfigError) as caught:
        read_inline(tmp_path / "train.py", tmp_path)
    assert caught.value.message.startswith(printed)


@pytest.mark.parametrize(
    ("source", "url", "option"),
    [
        ('{ index = "own" }', "https://wheels.example/simple", "--extra-index-url https://wheels.example/simple"),
        ('[{ index = "own", group = "rocm" }]', "https://wheels.example/simple", None),
        ('{ index = "other" }', "https://wheels.example/simple", None),
        ('{ index = "own" }', "https://download.pytorch.org/whl/cu124", None),
        ('{ index = "own" }', "https://me:secret@wheels.example/simple", None),
        ('{ index = "own" }', "https://wheels.example/\\n--pre", None),
    ],
)
def test_the_index_that_uv_takes_a_package_from(tmp_path: Path, source: str, url: str, option: str | None) -> None:
    uv = f'[tool.uv.sources]\nlab_kit = {source}\n[[tool.uv.index]]\nname = "own"\nurl = "{url}"\nexplicit = true\n'
    project(tmp_path, f'[project]\nname = "lab"\nversion = "1"\ndependencies = ["lab-kit", "six"]\n{uv}')
    for requirements in (None, "-e .\n"):
        if requirements:
            (tmp_path / "requirements.txt").write_text(requirements)
        needs = project_needs(tmp_path, ScriptFacts(), tmp_path)
        assert needs.requirements.lines == ("lab-kit", "six")
        assert needs.requirements.options == ((option,) if option else ())
    (tmp_path / "requirements.txt").unlink()
    reason = project_needs(tmp_path, ScriptFacts(), tmp_path).reason
    assert reason == "pyproject.toml lists them" + (f"; uv's index adds {option}" if option else "")
