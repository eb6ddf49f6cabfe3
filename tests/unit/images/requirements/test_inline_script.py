"""The list inside a script, as uv run reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.errors import ConfigError
from seatrial.images.requirements.other_formats import read_inline
from seatrial.images.requirements.project import project_needs
from seatrial.job.script import ScriptFacts
from tables import cases

SCRIPT = """#!/usr/bin/env -S uv run --script
# /// script
# requires-python = ">=3.12"
# dependencies = [
#   "humanize>=4",
#
#   "core-lib",
#   "shapes",
# ]
#
# [tool.uv.sources]
# core-lib = { path = "../core" }
# shapes = { url = "https://host/shapes.zip" }
# ///
import humanize
"""


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_what_a_script_lists_comes_before_the_projects_lists(tmp_path: Path, ends: str) -> None:
    (tmp_path / "requirements.txt").write_text("pandas==1.0\n")
    file = tmp_path / "train.py"
    file.write_bytes(SCRIPT.replace("\n", ends).encode())
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


def test_a_list_that_is_not_read_is_named_with_what_makes_one_that_is(tmp_path: Path) -> None:
    (tmp_path / "pixi.toml").touch()
    needs = project_needs(tmp_path, ScriptFacts(imports=("humanize",)), tmp_path)
    assert needs.reason == "pixi.toml is not read: using the imports"
    assert needs.warnings == (
        "pixi.toml is not read: for its versions: pixi workspace export conda-environment environment.yml",
    )
    (tmp_path / "requirements.txt").touch()
    assert project_needs(tmp_path, ScriptFacts(imports=("humanize",)), tmp_path).warnings == ()
