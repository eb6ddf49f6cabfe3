"""Scripts of torch.distributed.launch's time: each rank is told its number by an option."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from seatrial.agent.target import command
from seatrial.common.contract.agent_plan import AgentPlan
from seatrial.job.model import Job, Target
from seatrial.job.script import script_facts
from seatrial.planning.launcher import choose_launcher, with_rank

SCRIPT = """
import argparse
import torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("out")
parser.add_argument("--local_rank", type=int, default=-1)
args = parser.parse_args()
if args.local_rank != -1:
    dist.init_process_group("gloo")
print(f"rank {args.local_rank} of {args.out}\\n", end="", flush=True)
"""


def _planned(folder: Path, gpus: int, *args: str) -> tuple[str, tuple[str, ...], str]:
    (folder / "train.py").write_text(SCRIPT)
    target = Target(kind="script", value="train.py", args=args)
    job, script = Job(project=folder, target=target), script_facts(target, folder)
    launcher, choice = choose_launcher(job, script, gpus)
    return launcher, with_rank((sys.executable, "train.py", *args), job, script, launcher), choice.reason


def test_one_gpu_is_as_typed(tmp_path: Path) -> None:
    launcher, argv, _ = _planned(tmp_path, 1, "here")
    assert (launcher, argv[1:]) == ("none", ("train.py", "here"))


def test_what_the_user_gives_is_left_alone(tmp_path: Path) -> None:
    _, argv, reason = _planned(tmp_path, 2, "here", "--local_rank=0")
    assert argv[1:] == ("train.py", "here", "--local_rank=0") and "is given" not in reason


def test_each_rank_gets_its_number(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    launcher, argv, reason = _planned(tmp_path, 2, "here")
    assert launcher == "torchrun" and reason.endswith("; each rank is given --local_rank")
    plan = AgentPlan(run_id="r", argv=list(argv), workdir="/", run_dir="/", script=1, launcher=launcher, processes=2)
    ended = subprocess.run(command(plan), cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    assert sorted(ended.stdout.splitlines()) == ["rank 0 of here", "rank 1 of here"]
