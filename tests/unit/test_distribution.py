"""The wheel has every file of the package, correct metadata, and one version."""

from __future__ import annotations

import email
import os
import re
import zipfile
from collections.abc import Iterator
from email.message import Message
from pathlib import Path

import pytest

import seatrial

ROOT = Path(__file__).parents[2]
PACKAGE = Path(seatrial.__file__).parent

#: One file of each kind besides Python, so that a rule that omits a kind fails.
KINDS = (
    "receipt/render/templates/receipt.html", "stack/tables/torch.json", "serve/static/page.js",
    "monitor/static/icon.svg", "monitor/prometheus.yml",
    "agent/__main__.py", "recipes/digits.py", "py.typed", "cli/shells/seatrial.fish",
)  # fmt: skip


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    backend = pytest.importorskip("hatchling.build")
    if not (ROOT / "pyproject.toml").exists():
        pytest.skip("the tests are not in a checkout")
    folder, before = tmp_path_factory.mktemp("dist"), Path.cwd()
    os.chdir(ROOT)
    try:
        with zipfile.ZipFile(folder / backend.build_wheel(str(folder))) as opened:
            yield opened
    finally:
        os.chdir(before)


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return email.message_from_bytes(wheel.read(name))


def test_the_wheel_has_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    ours = {
        f"seatrial/{path.relative_to(PACKAGE).as_posix()}"
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.parent.name != "catalog"
    }
    ours.add("seatrial/findings/catalog.json")  # made of the TOML files in findings/catalog
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name and ".data/" not in name}
    assert packed == ours
    assert {f"seatrial/{name}" for name in KINDS} <= packed


def test_the_licence_is_in_it_word_for_word(wheel: zipfile.ZipFile, metadata: Message) -> None:
    text = wheel.read(next(name for name in wheel.namelist() if name.endswith("/licenses/LICENSE")))
    assert text == (ROOT / "LICENSE").read_bytes() and b"END OF TERMS AND CONDITIONS" in text
    assert metadata["License-Expression"] == "Apache-2.0"


def test_its_metadata(wheel: zipfile.ZipFile, metadata: Message) -> None:
    assert metadata["Version"] == seatrial.__version__
    assert metadata["Requires-Python"] == ">=3.10"
    assert {"k8s", "train", "dashboard"} <= set(metadata.get_all("Provides-Extra", []))
    required = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert not any(re.match(r"(torch|numpy|kr8s|plotly)\b", line) for line in required), required
    scripts = next(name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert b"seatrial = seatrial.cli:main" in wheel.read(scripts)


def test_versions_agree() -> None:
    assert re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)[1] == seatrial.__version__  # type: ignore[index]
    assert "## Unreleased" in (ROOT / "CHANGELOG.md").read_text()


def test_every_extra_is_documented() -> None:
    extras = re.search(
        r"\[project.optional-dependencies\]\n(.*?)\n\n", (ROOT / "pyproject.toml").read_text(), re.DOTALL
    )
    assert extras
    named = set(re.findall(r"^(\w+) = \[", extras[1], re.MULTILINE))
    rows = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "installing.md").read_text(), re.MULTILINE))
    assert named == rows
