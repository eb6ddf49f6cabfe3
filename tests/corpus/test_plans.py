"""`seatrial plan` of every project of the corpus, by the real command line; no engine has to be there."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from corpus.corpus import NAMES, installed, read
from fakes import FakeBackend
from seatrial.backends import table
from seatrial.cli import _main

EVERY = "auto"


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # what the tables know is enough
    monkeypatch.setitem(table.BACKENDS, "docker", lambda environ: FakeBackend())


@pytest.mark.parametrize("name", NAMES)
def test_plan(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    project = read(name)
    monkeypatch.chdir(project.copy(tmp_path))
    words = shlex.split(project.command)
    gpus = [] if "--target" in words else ["--gpus", "none"]
    code = _main(["plan", "--on", "docker", *gpus, "--json", *words])
    printed = capsys.readouterr()
    shown = printed.out + printed.err
    assert code == project.plan.get("exit", 0), shown
    assert "Traceback" not in shown
    if code != 0:
        assert [part for part in project.plan.get("says", []) if part not in shown] == [], shown
        return
    plan = json.loads(printed.out)
    told = "\n".join(
        [*plan["warnings"], *(f"{each['what']}: {each['value']} {each['reason']}" for each in plan["choices"])]
    )
    assert [part for part in project.plan.get("says", []) if part not in told] == [], told
    asked = installed(plan)
    assert [each for each in project.plan.get("packages", []) if each not in asked] == [], asked
    assert [each for each in project.plan.get("without", []) if each in asked] == [], asked
    if project.plan.get("packages") == []:
        assert asked == set()
    assert plan["agent"]["launcher"] == project.plan.get("launcher", "none")
    assert plan["image"]["stack"].get("python", "") == project.plan.get(
        "python", plan["image"]["stack"].get("python", "")
    )
