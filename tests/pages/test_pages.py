"""Pages marked executable come out as they are written; every recorded output has a date and a reason."""

from __future__ import annotations

import os
import sys
from datetime import date
from pathlib import Path

import pytest

from . import console

DOCS = Path(__file__).parents[2] / "docs"

PAGES = {
    page.relative_to(DOCS).as_posix(): page.read_text(encoding="utf-8")
    for page in sorted(DOCS.rglob("*.md"))
    if console.EXECUTABLE.search(page.read_text(encoding="utf-8"))
}

#: The page that the core tier runs: about six seconds.
FIRST = "start.md"


def environment(folder: Path) -> dict[str, str]:
    """A new user's, with this installation's seatrial."""
    kept = {name: os.environ[name] for name in ("LANG", "LC_ALL", "SEATRIAL_STATE", "PYTHONPATH") if name in os.environ}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**kept, "PATH": path, "HOME": str(folder), "COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}


def test_there_are_executable_pages() -> None:
    assert FIRST in PAGES
    assert len(PAGES) >= 3


@pytest.mark.parametrize("name", PAGES)
def test_blocks_are_run_or_dated(name: str) -> None:
    found = list(console.blocks(PAGES[name]))
    assert any(block.commands and not block.recorded for block in found), "nothing on it is run"
    for block in found:
        assert block.recorded is None or date(2026, 11, 1) <= block.recorded, f"{name}:{block.line}"


@pytest.mark.parametrize(
    "name", [page if page == FIRST else pytest.param(page, marks=pytest.mark.slow) for page in PAGES]
)
def test_page_comes_out_as_written(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("the pages show what happens without a GPU")
    marker = console.EXECUTABLE.search(PAGES[name])
    if marker and marker[1]:
        request.getfixturevalue("docker_backend")
    if "seatrial run digits" in PAGES[name]:
        pytest.importorskip("torch")
        pytest.importorskip("sklearn")
    folders = (tmp_path / "home", tmp_path / "project")
    for folder in folders:
        folder.mkdir()
    wrong = console.run(PAGES[name], folders[1], environment(folders[0]))
    assert not wrong, "\n\n".join(wrong)
