"""Scripts that import Horovod, under the agent and torchrun, as `seatrial run train.py --gpus 2` starts them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agent_process import Agent

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

SCRIPTS = Path(__file__).parents[1] / "unit" / "compat" / "scripts"

#: A package by the name of Horovod with a launcher that starts the given number of processes.
OTHERS = {
    "__init__": "",
    "torch": "import os\nrank = lambda: int(os.environ['ITS_RANK'])\ninit = lambda: None\n",
    "runner/__init__": "",
    "runner/launch": (
        "import os, subprocess, sys\n"
        "assert sys.argv[1] == '-np', sys.argv\n"
        "for rank in range(int(sys.argv[2])):\n"
        "    subprocess.run(sys.argv[3:], env={**os.environ, 'ITS_RANK': str(rank)}, check=True)\n"
    ),
}


def agent(folder: Path, script: str, **plan: object) -> Agent:
    keys = {"launcher": "torchrun", "processes": 2, "stand_ins": ["horovod"], "measure_steps": True, **plan}
    return Agent(folder, script, env={"OMP_NUM_THREADS": "1", **keys.pop("env", {})}, **keys)


@pytest.mark.slow
def test_a_script_of_images_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    first, second, kept = tmp_path / "first", tmp_path / "second", tmp_path / "kept"
    for folder in (first, second, kept):
        folder.mkdir()
    script = (SCRIPTS / "images.py").read_text()
    argv = [sys.executable, "target.py", str(kept)]
    done = agent(first, script, argv=argv).run()
    assert done.returncode == 0, done.stderr
    assert b"epoch 2 loss" in done.stdout and b"rank 1 of 2 has the weights of all" in done.stdout
    assert done.stderr.count(b"horovod.torch is seatrial's stand-in on torch.distributed (2 ranks") == 1
    done = agent(second, script, argv=argv, measure_steps=False).run()
    assert done.returncode == 0, done.stderr
    assert b"epoch 4 loss" in done.stdout and b"epoch 1 " not in done.stdout


def test_a_script_of_words(tmp_path: Path) -> None:
    started = agent(tmp_path, (SCRIPTS / "words.py").read_text())
    done = started.run()
    assert done.returncode == 0, done.stderr
    assert b"rank 1 of 2" in done.stdout
    steps = [event for event in started.events("step") if "anatomy" in event]
    assert steps, "the hook measures such scripts as all others"


def own_horovod(tmp_path: Path) -> dict[str, str]:
    for name, text in OTHERS.items():
        path = tmp_path / "site" / "horovod" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {"PYTHONPATH": str(tmp_path / "site")}


SAYS = "import horovod.torch as hvd; hvd.init(); print('rank', hvd.rank(), hasattr(hvd, 'allreduce'), flush=True)"


def test_a_horovod_that_is_installed_is_used_by_its_own_launcher(tmp_path: Path) -> None:
    started = agent(tmp_path, SAYS, env=own_horovod(tmp_path))
    done = started.run()
    assert done.stdout == b"rank 0 False\nrank 1 False\n", done.stderr
    assert started.events("target.started")[0]["launcher"] == "horovodrun"


@pytest.mark.slow
def test_between_nodes_the_stand_in_goes_first(tmp_path: Path) -> None:
    meeting = {"nodes": 2, "min_nodes": 1, "node_rank": 0, "rendezvous": "127.0.0.1:29711", "rendezvous_id": "x"}
    done = agent(tmp_path, SAYS, env=own_horovod(tmp_path), processes=1, **meeting).run()
    assert b"rank 0 True" in done.stdout, done.stderr


def test_one_process_needs_no_launcher(tmp_path: Path) -> None:
    done = agent(tmp_path, SAYS, launcher="none", processes=1, measure_steps=False).run()
    assert done.stdout == b"rank 0 True\n", done.stderr
