"""A requirement that is a folder of the project's: what to write in place of it names that folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.errors import ConfigError
from seatrial.images.requirements.pip_format import read_requirements
from tables import cases


@cases("line", "folder")
def test_the_advice_names_the_folder(tmp_path: Path, line: str, folder: str) -> None:
    (tmp_path / "requirements.txt").write_text(line + "\n")
    with pytest.raises(ConfigError, match="from a folder that is not in the image") as caught:
        read_requirements(tmp_path / "requirements.txt", tmp_path)
    assert caught.value.run == f"remove the line, and add PYTHONPATH={folder} to [env]; for a src layout {folder}/src"
