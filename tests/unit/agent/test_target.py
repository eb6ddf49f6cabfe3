"""The target's command line and variables, and who gets a signal."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from seatrial.agent.target import command, interpreter, signal_recipients, target_environment
from seatrial.common.agent_plan import AgentPlan

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]


def plan(argv=("true",), script=None, **keys):
    return AgentPlan(run_id="r1", argv=argv, workdir="/", run_dir="/seatrial/run", script=script, **keys)


@pytest.mark.parametrize(
    ("argv", "script"),
    [(["python", "train.py", "-x"], 1), (["/entry.sh", "python3", "-u", "-m", "pkg.train"], 3)],
)
def test_torchrun_takes_the_place_before_the_script(argv, script):
    expected = [*argv[:script], *TORCHRUN, *argv[script:]]
    assert command(plan(argv, script, launcher="torchrun", processes=4)) == expected
    assert command(plan(argv, script)) == argv


def test_several_nodes_meet_at_the_first():
    nodes = {"nodes": 3, "min_nodes": 2, "node_rank": 1, "rendezvous": "a:1"}
    words = " ".join(command(plan(["python", "t.py"], 1, launcher="torchrun", **nodes)))
    assert "--nnodes 2:3 --rdzv-backend c10d --rdzv-endpoint a:1" in words
    assert "is_host=0" in words and "--standalone" not in words


@pytest.mark.parametrize(
    ("argv", "script", "python"),
    [
        (["/entry.sh", "/opt/venv/bin/python3.12", "-u", "t.py"], 3, "/opt/venv/bin/python3.12"),
        (["/guard/checked-python", "-u", "t.py"], 2, "/guard/checked-python"),
        (["/usr/bin/serve"], None, "python3"),
    ],
)
def test_interpreter_is_the_targets_own(argv, script, python):
    assert interpreter(plan(argv, script)) == python


@pytest.mark.parametrize(("gpu_mode", "visible"), [("none", ""), ("auto-cpu", ""), ("required", "all")])
def test_cpu_runs_see_no_gpu_and_gpu_runs_keep_the_images_variable(gpu_mode, visible):
    env = target_environment(plan(gpu_mode=gpu_mode), {"CUDA_VISIBLE_DEVICES": "all"}, {})
    assert env["CUDA_VISIBLE_DEVICES"] == visible


def test_secrets_precede_the_plan_and_the_plan_the_image():
    env = target_environment(plan(env={"A": "plan", "B": "plan"}), {"A": "image", "C": "image"}, {"B": "secret"})
    assert (env["A"], env["B"], env["C"]) == ("plan", "secret", "image")
    assert env["SEATRIAL_EVENTS"] == "/seatrial/run/events.jsonl" and env["SEATRIAL_RUN_ID"] == "r1"
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID" and env["PYTHONUNBUFFERED"] == "1"


@pytest.mark.parametrize(("launcher", "script", "stays"), [("torchrun", 1, 0), ("none", 1, 0), ("none", None, 7)])
def test_ranks_of_operators_go_where_seatrial_starts_the_script(launcher, script, stays):
    """A script that finds RANK without LOCAL_RANK fails; a command of the user's own has what its operator set."""
    operators = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "run-master-0"}
    ranks = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "run-master-0", "MASTER_PORT": "23456"}
    env = target_environment(plan(launcher=launcher, script=script), {**operators, **ranks, "PET_LOG_DIR": "/tmp"}, {})
    assert len({**operators, **ranks}.keys() & env.keys()) == stays and env["PET_LOG_DIR"] == "/tmp"
    if not stays and launcher == "none":  # no operator's pod: the user's own
        assert target_environment(plan(script=script), ranks, {})["RANK"] == "0"


@pytest.mark.parametrize(
    ("number", "launcher", "with_ranks"),
    [(signal.SIGINT, "none", True), (signal.SIGTERM, "none", True), (signal.SIGINT, "torchrun", False),
     (signal.SIGTERM, "torchrun", True)],
)  # fmt: skip
def test_torchrun_alone_gets_sigint(number: signal.Signals, launcher: str, with_ranks: bool) -> None:
    rank = "subprocess.Popen([sys.executable, '-c', 'input()  # rank']); print(flush=True); input()"
    rank = "import subprocess, sys; " + rank
    with subprocess.Popen([sys.executable, "-c", rank], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = signal_recipients(number, process.pid, launcher)
        assert process.pid in found and (len(found) > 1) is with_ranks
        process.communicate(b"\n\n")


def test_the_shells_variable_for_the_program_is_set_unless_an_image_has_it() -> None:
    assert target_environment(plan(), {}, {})["_"] == plan().argv[0]
    assert target_environment(plan(), {"_": "/bin/x"}, {})["_"] == "/bin/x"
