"""The Python interface, used as people do: in a script of theirs, in a process of its own."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

import seatrial
from pace import slowness, until
from seatrial.errors import SeatrialError, TrustError

#: Of the issue.
IMPORT_LIMIT_S = 0.05

TRAIN = """
import json, os, sys
steps = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 5
with open(os.environ["SEATRIAL_EVENTS"], "a") as events:
    for step in range(steps):
        print("step", step)
        print(json.dumps({"step": step, "loss": 1 / (step + 1), "accuracy": step / steps}), file=events)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "fails.py").write_text("raise ValueError('no such luck')\n")
    (tmp_path / "sleeps.py").write_text("import time\nprint('ready', flush=True)\ntime.sleep(60)\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


LOCAL = {"on": "local", "gpus": "none"}


def test_a_run_and_its_receipt(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    receipt = seatrial.run("train.py", args=["--steps", 8], criteria={"accuracy": ">= 0.5"}, **LOCAL)
    assert isinstance(receipt, seatrial.Receipt)
    assert "step 7" in capsys.readouterr().out
    assert receipt.exit_code == 0 and receipt.outcome.id == "cpu"
    assert receipt.criteria["accuracy"].passed and receipt.criteria[0].id == "gpus-visible"
    assert not receipt.criteria["gpu_busy"].passed and receipt.criteria["gpu-busy"].verdict == "not judged"
    with pytest.raises(KeyError, match="this receipt has: gpus-visible"):
        receipt.criteria["nothing"]
    loss = receipt.metrics("loss")
    assert (loss.name, loss.x, len(loss.values)) == ("loss", "step", 8)
    assert loss.values[0] == 1.0 and abs(loss.values[-1] - 1 / 8) < 1e-5 and list(loss.at) == list(range(8))
    with pytest.raises(KeyError, match=r"has curves of: .*loss"):
        receipt.metrics("learning_rate")


def test_it_is_the_receipt_of_the_command_line(project: Path) -> None:
    receipt = seatrial.run("train.py", output=None, **LOCAL)
    shown = subprocess.run(
        [sys.executable, "-m", "seatrial", "runs", "show", "last", "--json"], capture_output=True, text=True, check=True
    )
    assert seatrial.Receipt.model_validate_json(shown.stdout) == receipt
    assert seatrial.Receipt.model_validate_json(shown.stdout).criteria["model-saved"]


def test_output_goes_where_standard_output_goes_now(project: Path) -> None:
    with contextlib.redirect_stdout(io.StringIO()) as cell:
        seatrial.run("train.py", **LOCAL)
    assert "step 4" in cell.getvalue()


def test_to_pandas(project: Path) -> None:
    pandas = pytest.importorskip("pandas")
    table = seatrial.run("train.py", output=None, **LOCAL).to_pandas()
    assert isinstance(table, pandas.DataFrame)
    assert list(table[table.name == "loss"].sort_values("at").value)[:2] == [1.0, 0.5]


def test_a_notebook_shows_it(project: Path) -> None:
    receipt = seatrial.run("train.py", output=None, **LOCAL)
    page = receipt._repr_html_()
    assert page.startswith('<iframe srcdoc="&lt;!doctype html&gt;') and page.count("<") == 2
    assert receipt.header.run_id in receipt._repr_markdown_()


def test_a_target_that_fails_raises_nothing(project: Path) -> None:
    receipt = seatrial.run("fails.py", output=None, **LOCAL)
    assert receipt.exit_code == 1 and receipt.outcome.id == "failed" and "no such luck" in receipt.outcome.words


def test_what_cannot_start_raises(project: Path) -> None:
    with pytest.raises(SeatrialError) as caught:
        seatrial.run("nothing.py", **LOCAL)
    assert "nothing.py" in caught.value.message and caught.value.run
    with pytest.raises(SeatrialError, match="gpus 0 is ambiguous"):
        seatrial.plan("train.py", gpus=0)
    with pytest.raises(SeatrialError, match="unknown key"):
        seatrial.plan("train.py", gpu=1)


def test_plan_changes_nothing(project: Path) -> None:
    before = sorted(project.rglob("*"))
    made = seatrial.plan("train.py", **LOCAL)
    assert made.backend == "local" and {choice.what for choice in made.choices} >= {"gpus"}
    assert sorted(project.rglob("*")) == before


def test_runs_and_one_that_lives(project: Path) -> None:
    assert seatrial.runs() == []
    seatrial.run("train.py", output=None, **LOCAL)
    begun = seatrial.start("sleeps.py", name="sleeper", **LOCAL)
    until(lambda: "ready" in begun.output)
    assert begun.status == "running" and begun.receipt is None
    assert "ready" in begun._repr_html_() and "sleeper" in repr(begun)
    assert seatrial.runs()[0].id == begun.id and len(seatrial.runs(limit=1)) == 1
    assert begun.stop().outcome.id == "stopped"
    assert begun.status == "stopped" and begun._repr_html_().startswith("<iframe")
    assert (begun.folder / "receipt.html").is_file() and begun.plan.job.name == "sleeper"


def test_a_space_stays_a_space() -> None:
    """``seatrial.runs`` is a package and a function, in any order of imports."""
    program = "import seatrial.runs.store, seatrial.doctor.report, seatrial; print(seatrial.runs(), seatrial.doctor)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd="/")
    assert done.stdout.startswith("[") and "module 'seatrial.doctor'" in done.stdout, done.stderr


def test_a_project_is_not_trusted_by_itself(project: Path) -> None:
    (project / "seatrial.toml").write_text('on = "local"\ngpus = "none"\n')
    with pytest.raises(TrustError):
        seatrial.run("train.py", output=None)
    assert seatrial.run("train.py", output=None, trust=True).exit_code == 0


def test_doctor() -> None:
    seen = seatrial.doctor(on="local", host_only=True)
    assert seen.exit_code in (0, 1, 2) and seen.results[0].check.id == "hardware.present"
    assert (seen.first_broken is None) == (seen.exit_code != 2)
    assert seen._repr_markdown_().startswith("### seatrial doctor") and seen.to_dict()["checks"]


def test_import_is_quick() -> None:
    """CPU time beyond Python's own start, the best of seven."""
    took = {}
    for program in ("pass", "import seatrial"):
        times = []
        for _ in range(7):
            before = os.times()
            subprocess.run([sys.executable, "-c", program], check=True)
            after = os.times()
            times.append(after.children_user + after.children_system - before.children_user - before.children_system)
        took[program] = min(times)
    assert took["import seatrial"] - took["pass"] < IMPORT_LIMIT_S * slowness()


def test_the_package_for_images_reports_where_it_is(tmp_path: Path) -> None:
    """There the host side is not: the same __init__.py, no api."""
    (tmp_path / "seatrial").mkdir()
    (tmp_path / "seatrial" / "__init__.py").write_bytes((Path(seatrial.__file__)).read_bytes())
    program = "import seatrial\ntry: seatrial.run\nexcept AttributeError as error: print(error)\n"
    program += "print(hasattr(seatrial, 'x'))"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{program}"],
        capture_output=True,
        text=True,
    )
    assert "host side only" in done.stdout and done.stdout.endswith("False\n"), done.stderr
