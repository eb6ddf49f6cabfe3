"""Nearest names."""

from __future__ import annotations

from seatrial.system.text import did_you_mean, nearest


def test_what_is_like_it_is_found_and_nothing_else() -> None:
    known = ["preprocess", "Train-Large", "export"]
    assert nearest("preprocess2", known) == "preprocess"
    assert nearest("train-lage", known) == "Train-Large"
    assert nearest("x", known) is None and nearest("", known) is None and nearest("train", []) is None
    assert did_you_mean("expor", known) == "; did you mean export?" and did_you_mean("serve", known) == ""
