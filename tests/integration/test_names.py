"""Receipts, sweeps' pages and doctor's report of the real command line: nobody's name, no machine's, no home."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli_project import Project

SCRIPT = """
import os, sys
home = os.path.expanduser("~")
print("saving to", home, "as", os.environ["USER"])
raise PermissionError(13, "Permission denied", home + "/models/zebedee.pth")
"""


@pytest.fixture
def zebedees(tmp_path: Path, environ: dict[str, str]) -> Iterator[Project]:
    """A project below the home folder of somebody called zebedee."""
    home = tmp_path / "people" / "zebedee"
    settings = {**environ, "HOME": str(home), "USER": "zebedee", "LOGNAME": "zebedee", "COLUMNS": "200"}
    settings |= {"SEATRIAL_STATE": str(tmp_path / "state"), "KUBECONFIG": str(home / ".kube" / "config")}
    made = Project(home / "project", "local", settings)
    made.write("train.py", SCRIPT)
    yield made
    made.clean()


def test_a_receipt_of_a_run_that_reports_its_owner(zebedees: Project) -> None:
    shown = zebedees.run("train.py", "--gpus", "none", "--name", "zebedee-1", exit_code=1).stdout
    shown = shown[shown.index("[✗]") :]  # the target's own output comes first, as it is
    files = {path.name: path.read_text() for path in zebedees.last.glob("receipt.*")}
    assert set(files) == {"receipt.json", "receipt.md", "receipt.html"}
    again = (
        zebedees.cli("runs", "show", exit_code=1).stdout + zebedees.cli("runs", "show", "--json", exit_code=1).stdout
    )
    for text in (shown, again, *files.values()):
        assert "USER.pth" in text and "/models/" in text
        assert "zebedee" not in text and zebedees.environ["HOME"] not in text
    assert json.loads(files["receipt.json"])["header"]["host"] is None and f"on {platform.node()}" not in shown


def test_with_names_it_reports_all(zebedees: Project) -> None:
    zebedees.run("train.py", "--gpus", "none", "--with-names", exit_code=1)
    receipt = zebedees.receipt()
    assert receipt["header"]["host"] == platform.node()
    assert f"{zebedees.environ['HOME']}/models/zebedee.pth" in receipt["exit_cause"]["words"]


def test_a_file_that_wants_names_is_confirmed(zebedees: Project) -> None:
    zebedees.write("seatrial.toml", "with_names = true\n")
    zebedees.trusted = False
    refused = zebedees.run("train.py", "--gpus", "none", exit_code=2).stderr
    assert "writes your user and host names into receipts" in refused


def test_the_page_of_a_sweep(zebedees: Project) -> None:
    zebedees.write(
        "train.py", "import argparse\np = argparse.ArgumentParser()\np.add_argument('--out')\np.parse_args()\n"
    )
    words = ("train.py", "--on", "local", "--gpus", "none", "--set", f"out={zebedees.environ['HOME']}/a,zebedee")
    zebedees.cli("sweep", *words)
    [page, results] = [
        next((zebedees.folder / ".seatrial").rglob(name)).read_text() for name in ("index.html", "results.json")
    ]
    for text in (page, results):
        assert "~/a" in text and "USER" in text and "zebedee" not in text


def test_doctors_report(zebedees: Project) -> None:
    words = ("doctor", "--host-only", "--report", "report.json")
    zebedees.cli(*words, exit_code=None)
    text = (zebedees.folder / "report.json").read_text()
    assert json.loads(text)["facts"]["environment"]["KUBECONFIG"] == "~/.kube/config"
    assert "zebedee" not in text and zebedees.environ["HOME"] not in text and f'"{platform.node()}"' not in text
    zebedees.cli(*words, "--with-names", exit_code=None)
    assert zebedees.environ["KUBECONFIG"] in (zebedees.folder / "report.json").read_text()
