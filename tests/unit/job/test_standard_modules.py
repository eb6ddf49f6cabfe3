"""The image's Python, not the host's, decides which modules are in the standard library."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from seatrial.job.model import Target
from seatrial.job.reading.modules import EVERYWHERE, STANDARD_MODULES
from seatrial.job.script import script_facts

#: Of 3.10 only, to 3.11, to 3.12, from 3.11 on, from 3.14 on: no host has them all.
CAME_OR_WENT = ("binhex", "distutils", "telnetlib", "tomllib", "annotationlib")


@pytest.mark.parametrize("name", CAME_OR_WENT)
def test_a_module_of_another_python_is_no_package(tmp_path: Path, name: str) -> None:
    (tmp_path / "train.py").write_text(f"import torch\nimport {name}\n")
    assert script_facts(Target(kind="script", value="train.py"), tmp_path).imports == ("torch",)
    assert name in STANDARD_MODULES and name not in EVERYWHERE


def test_this_hosts_own_are_all_in_it() -> None:
    assert sys.stdlib_module_names <= STANDARD_MODULES and {"os", "json", "asyncio"} <= EVERYWHERE


def test_a_package_of_the_project_may_have_a_name_that_only_some_pythons_use(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'ours'\nversion = '1'\n")
    (tmp_path / "train.py").write_text("import compression\n")
    (tmp_path / "lib" / "compression").mkdir(parents=True)
    (tmp_path / "lib" / "compression" / "__init__.py").write_text("import tensorflow\n")
    assert "tensorflow" in script_facts(Target(kind="script", value="train.py"), tmp_path).imports
