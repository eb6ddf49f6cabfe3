"""Going on from a run that ended before its first checkpoint: it begins anew, warns, and ends with 0."""

import importlib.util
import json
import shutil

import pytest

from cli_project import Project

SCRIPT = """
import json, os, pathlib, sys
place = os.environ.get("SEATRIAL_RESUME_DIR")
found = sorted(p.name for p in pathlib.Path(place).iterdir()) if place and pathlib.Path(place).is_dir() else None
print(json.dumps({"place": place, "found": found}))
sys.exit(0 if place else 7)
"""


@pytest.fixture
def local(environ, tmp_path):
    made = Project(tmp_path / "project", "local", environ)
    yield made
    made.clean()


@pytest.mark.parametrize("folder", [pytest.param("empty", marks=pytest.mark.slow), "missing"])
def test_a_script(local, folder):
    local.write("train.py", SCRIPT)
    local.run("train.py", "--gpus", "none", exit_code=1)
    if folder == "missing":
        shutil.rmtree(local.place / "outputs" / "checkpoints")
    ended = local.cli("run", "--resume", "last")
    assert "saved no checkpoint, so the target starts from scratch" in ended.stderr
    assert not json.loads(local.output())["found"]


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="torch is not installed")
@pytest.mark.skipif(not importlib.util.find_spec("sklearn"), reason="scikit-learn is not installed")
@pytest.mark.parametrize("folder", ["empty", "missing"])
def test_a_recipe(local, folder):
    local.run("digits", "--gpus", "none", "--", "--epochs", "0", exit_code=1)  # refused before it trains
    if folder == "missing":
        shutil.rmtree(local.place / "outputs" / "checkpoints")
    ended = local.run("digits", "--gpus", "none", "--resume", "last", "--", "--epochs", "1")
    assert "the run to resume from saved no checkpoint: training starts from scratch" in ended.stderr
    assert list((local.place / "outputs" / "checkpoints").glob("checkpoint-*.pt"))
