"""Published receipts: their evidence is whole and is what they were judged from; those without evidence are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.events import follow_chain
from seatrial.receipt.model import load

RECEIPTS = Path(__file__).parents[2] / "docs" / "receipts"
FOLDERS = sorted(path for path in RECEIPTS.iterdir() if path.is_dir())
VERIFIED = [folder for folder in FOLDERS if (folder / "events.jsonl").exists()]


@pytest.mark.parametrize("folder", VERIFIED, ids=lambda folder: folder.name)
def test_evidence_of_a_receipt_is_unchanged(folder: Path) -> None:
    chain, seal = follow_chain(str(folder / "events.jsonl")), load(folder).seal
    assert chain.broken_at is None and seal is not None
    assert (chain.lines, chain.digest) == (seal.lines, seal.digest)


def test_receipts_without_evidence_are_named() -> None:
    page = (RECEIPTS / "README.md").read_text(encoding="utf-8")
    rows = {folder.name: next(row for row in page.splitlines() if f"]({folder.name}/" in row) for folder in FOLDERS}
    without = {name for name, row in rows.items() if row.endswith("| no |")}
    assert without == {folder.name for folder in FOLDERS} - {folder.name for folder in VERIFIED}
    assert all(row.endswith(("| no |", "| yes |")) for row in rows.values())
