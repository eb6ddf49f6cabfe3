"""Generators against everything that is parsed from a project, a machine or a data file.

The property is the same everywhere: what leaves a parser is a result or one of our errors, within two seconds of CPU
time and 200 MB, for any bytes. Each property is a test that runs twice: a few dozen cases in the core tier, the
same ones every time, and thousands of new ones in the full tier (``slow``; ``make test-all``). ``SEATRIAL_FUZZ_CASES``
sets the number of the latter, e.g. for a night:

    SEATRIAL_FUZZ_CASES=100000 pytest -m slow tests/fuzz
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fuzz.attack import CORE_CASES

FULL_CASES = int(os.environ.get("SEATRIAL_FUZZ_CASES", "2000"))


@pytest.fixture(params=[CORE_CASES, pytest.param(FULL_CASES, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def cases(request: pytest.FixtureRequest) -> int:
    """Set the number of cases of a property."""
    count: int = request.param
    return count


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of one script that trains nothing."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("import argparse\n")
    return folder
