"""horovod.torch on real ranks with Gloo; each script in scripts/ checks its results and prints that."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import seatrial
from seatrial.agent.hook import install

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

SCRIPTS = Path(__file__).parent / "scripts"
COMPAT = Path(seatrial.__file__).parent / "compat"


def ranks(count: int, script: str, *arguments: str) -> list[tuple[int, str]]:
    """(exit code, output) of each rank, started as torchrun starts them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1"}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PYTHONPATH": str(COMPAT)}
    started = [
        subprocess.Popen(
            [sys.executable, str(SCRIPTS / script), *arguments],
            env={**os.environ, **shared, **meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        outputs = [process.communicate(timeout=300)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    return [(process.returncode, output) for process, output in zip(started, outputs, strict=True)]


def passed(ended: list[tuple[int, str]]) -> list[str]:
    """Return the checks that passed on rank 0."""
    assert all(code == 0 for code, _ in ended), "\n".join(output for _, output in ended)
    return [line.removeprefix("passed ") for line in ended[0][1].splitlines() if line.startswith("passed ")]


def test_every_operation() -> None:
    assert passed(ranks(2, "operations.py"))[-1] == "shut down"


def test_the_optimizer_is_ddp_to_the_bit() -> None:
    shown = passed(ranks(2, "optimizer.py"))
    assert shown[:4] == ["as DDP", "as DDP with Adam", "as DDP with clipping", "as DDP with accumulation"]
    assert shown[-1] == "SyncBatchNorm" and "as DDP in half precision" in shown


@pytest.mark.slow
def test_three_ranks_divide_as_ddp_does() -> None:
    assert "as DDP with Adam" in passed(ranks(3, "optimizer.py"))


def output(code: str) -> str:
    """Return the output of a process that is not a rank."""
    env = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    env["PYTHONPATH"] = str(COMPAT)
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_alone_it_needs_no_process_group() -> None:
    code = """if True:
        import horovod.torch as hvd, torch
        hvd.init()
        w = torch.nn.Parameter(torch.ones(2))
        o = hvd.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), [('w', w)])
        w.sum().backward()
        o.step()
        assert hvd.allgather_object(1) == [1]
        hvd.barrier()
        hvd.broadcast_optimizer_state(o, 0)
        print(w.tolist(), hvd.allreduce(torch.tensor(3)).item(), hvd.size(), torch.distributed.is_initialized())"""
    assert output(code) == "[0.0, 0.0] 3 1 False\n"


def test_missing_parts_name_the_way_without_them() -> None:
    code = """if True:
        import horovod
        parts = ('tensorflow', 'tensorflow.keras', 'keras', 'mxnet', 'spark', 'ray', 'runner', 'torch.elastic')
        for act in (*(lambda part=part: __import__('horovod.' + part) for part in parts), lambda: horovod.run(None)):
            try:
                act()
            except ImportError as error:
                print(error)"""
    lines = output(code).splitlines()
    assert len(lines) == 9 and all("seatrial run" in line for line in lines)
    assert sum("tf.distribute.MirroredStrategy" in line for line in lines) == 3


def test_the_agent_carries_every_file() -> None:
    there = {str(path.relative_to(COMPAT / "horovod"))[:-3] for path in (COMPAT / "horovod").rglob("*.py")}
    assert there == set(install.FILES["horovod"])
