"""The reference pages that come from code say what the code says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_reference", REFERENCE / "generate.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "name",
    [
        "seatrial.schema.json",
        "findings.md",
        "checks.md",
        "events.md",
        "cli.md",
        "receipt.md",
        "python.md",
        "train.md",
        "seatrial-toml.md",
    ],
)
def test_page_is_current(name: str) -> None:
    current = (REFERENCE / name).read_text(encoding="utf-8")
    assert current == generator().PAGES[name](), "run: python docs/reference/generate.py"
