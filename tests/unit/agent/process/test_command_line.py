"""Command lines."""

import pytest

from seatrial.agent.target import command, interpreter
from seatrial.common.contract.agent_plan import AgentPlan


def plan(argv, script, **keys):
    return AgentPlan(run_id="r", argv=argv, workdir="/", run_dir="/", script=script, **keys)


TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]


@pytest.mark.parametrize(
    ("argv", "script", "expected"),
    [
        (["python", "train.py", "-x"], 1, ["python", *TORCHRUN, "train.py", "-x"]),
        (
            ["/entry.sh", "python3", "-u", "-m", "pkg.train"],
            3,
            ["/entry.sh", "python3", "-u", *TORCHRUN, "-m", "pkg.train"],
        ),
    ],
)
def test_torchrun_takes_the_place_before_the_script(argv, script, expected):
    assert command(plan(argv, script, launcher="torchrun", processes=4)) == expected
    assert command(plan(argv, script)) == argv


def test_several_nodes_meet_at_the_first():
    line = command(
        plan(["python", "t.py"], 1, launcher="torchrun", nodes=3, min_nodes=2, node_rank=1, rendezvous="a:1")
    )
    words = " ".join(line)
    assert "--nnodes 2:3 --rdzv-backend c10d --rdzv-endpoint a:1" in words
    assert "is_host=0" in words and "--standalone" not in words


def test_interpreter_is_the_targets_own():
    assert interpreter(plan(["/entry.sh", "/opt/venv/bin/python3.12", "-u", "t.py"], 3)) == "/opt/venv/bin/python3.12"
    assert interpreter(plan(["/guard/checked-python", "-u", "t.py"], 2)) == "/guard/checked-python"
    assert interpreter(plan(["/usr/bin/serve"], None)) == "python3"
