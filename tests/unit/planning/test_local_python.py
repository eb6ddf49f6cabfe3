"""choose_python: the environments that are asked."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from seatrial.planning.process import candidates
from seatrial.system.host import Host


def test_one_environment_is_requested_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ours/bin/python", "ours/bin/python3", "other/bin/python"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    own = tmp_path / "ours" / "bin" / "python3"
    monkeypatch.setattr(sys, "executable", str(own))
    assert candidates(Host({"VIRTUAL_ENV": str(tmp_path / "ours")})) == [own]
    assert candidates(Host({"VIRTUAL_ENV": str(tmp_path / "other")})) == [tmp_path / "other" / "bin" / "python", own]
    assert candidates(Host({"VIRTUAL_ENV": str(tmp_path / "gone")})) == candidates(Host({})) == [own]
