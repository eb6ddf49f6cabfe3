"""Two ranks over Gloo, started by torchrun: the same training as one rank, also when one of them is lost."""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agent_process import Agent
from here import free_ports
from pace import until
from seatrial.probe import processes

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch
WORKER = Path(__file__).with_name("ranks_worker.py")


def launch(what: str, out: Path, world: int = 2, restarts: int = 0) -> subprocess.CompletedProcess[str]:
    out.mkdir(parents=True, exist_ok=True)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    command = [*torchrun, f"--max-restarts={restarts}", str(WORKER), what, str(out)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def start(torchrun: list[str], what: str, out: Path, **options: Any) -> subprocess.Popen[str]:
    """torchrun in a session of its own, its output in OUT/output-N of a number not used yet."""
    out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "torch.distributed.run", *torchrun, str(WORKER), what, str(out)]
    output = (out / f"output-{len(list(out.glob('output-*')))}").open("w")
    return subprocess.Popen(command, stdout=output, stderr=output, text=True, start_new_session=True, **options)


def results(out: Path, world: int = 2) -> list[dict[str, Any]]:
    return [torch.load(out / f"rank-{rank}.pt", weights_only=True) for rank in range(world)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One rank with the global batch."""
    out = tmp_path_factory.mktemp("alone")
    done = launch("plain", out, world=1)
    assert done.returncode == 0, done.stderr
    return results(out, 1)[0]


def close(ours: dict[str, Any], reference: dict[str, Any]) -> None:
    assert ours["losses"] == pytest.approx(reference["losses"], rel=1e-3, abs=1e-4)
    for name, tensor in reference["model"].items():
        assert torch.allclose(ours["model"][name], tensor, atol=1e-4), name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "micro"),
    [("plain", 16), ("forward", 4), ("backward", 4)],
)
def test_two_ranks_train_as_one_and_recover_together(
    alone: dict[str, Any], tmp_path: Path, what: str, micro: int
) -> None:
    done = launch(what, tmp_path)
    assert done.returncode == 0, done.stderr
    first, second = results(tmp_path)
    assert first["micro"] == second["micro"] == micro
    for name, tensor in first["model"].items():
        assert torch.equal(tensor, second["model"][name]), name
    assert first["metrics"] == second["metrics"]
    assert first["metrics"]["accuracy"] == pytest.approx(alone["metrics"]["accuracy"])
    close(first, alone)


@pytest.mark.slow
def test_the_recovered_curve_is_that_of_the_smaller_micro_batch(tmp_path: Path) -> None:
    assert launch("small", tmp_path / "small").returncode == 0
    assert launch("backward", tmp_path / "failed").returncode == 0
    small, failed = results(tmp_path / "small")[0], results(tmp_path / "failed")[0]
    assert failed["losses"] == small["losses"]


@pytest.mark.slow
def test_a_dead_rank_is_restarted_from_the_last_checkpoint(alone: dict[str, Any], tmp_path: Path) -> None:
    done = launch("die-once", tmp_path, restarts=1)
    assert done.returncode == 0, done.stderr
    assert "resumed from" in done.stdout and "epoch 2, step 0" in done.stdout
    for name, tensor in alone["model"].items():
        assert torch.allclose(results(tmp_path)[0]["model"][name], tensor, atol=1e-4), name
    # Another machine with a folder of its own, which is behind.
    shutil.copytree(tmp_path / "checkpoints", tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "checkpoint-0000000015.pt").unlink()
    apart = launch("apart", tmp_path)
    assert apart.returncode != 0
    assert "would resume from different checkpoints (epoch 3, step 0, epoch 4, step 0)" in apart.stderr


@pytest.mark.slow
@pytest.mark.parametrize("receiver", ["torchrun", "one rank"])
def test_sigterm_saves_once_ends_every_rank_with_143_and_goes_on_bit_identically(tmp_path: Path, receiver: str) -> None:
    assert launch("plain", tmp_path / "whole").returncode == 0
    out = tmp_path / "parts"
    torchrun = start(["--standalone", "--nproc-per-node=2"], "wait", out)
    try:
        until(lambda: all((out / f"waits-{rank}").exists() for rank in (0, 1)))
        number = torchrun.pid if receiver == "torchrun" else int((out / "waits-1").read_text())
        os.kill(number, signal.SIGTERM)
        time.sleep(1.0)  # torchrun looks at its signals and its ranks every 0.1 s
        (out / "go").touch()
        assert torchrun.wait(240) != 0
    finally:
        end(torchrun)
    assert [(out / f"exit-{rank}").read_text() for rank in (0, 1)] == ["143", "143"]
    message = (out / "output-0").read_text()
    assert message.count("terminated in epoch 2 after step 3: saved in") == 1
    assert [path.name for path in sorted((out / "checkpoints").glob("checkpoint-*"))] == [
        "checkpoint-0000000005.pt",
        "checkpoint-0000000008.pt",
    ]
    assert launch("resume", out).returncode == 0
    for whole, resumed in zip(results(tmp_path / "whole"), results(out), strict=True):
        assert whole["losses"][8:] == resumed["losses"]
        assert all(torch.equal(tensor, resumed["model"][name]) for name, tensor in whole["model"].items())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_lost_node_is_done_without_and_taken_back(tmp_path: Path) -> None:
    """Two ranks, one, two again, each from the last checkpoint. Torchrun takes a node for lost after 3 s here.

    A node that comes back learns of a store only with the variable below: else node 0 keeps the address that it gave
    out before to itself, and both wait (torch 2.13, dynamic_rendezvous.py, _bootstrap_store_info).
    """
    env = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    [port] = free_ports()
    meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=test", "--nnodes=1:2"]
    patience = "last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=3,is_host="
    options = [*meeting, "--nproc-per-node=1", "--max-restarts=5", "--rdzv-conf"]
    host = start([*options, f"{patience}1"], "elastic", tmp_path, env=env)
    output = tmp_path / "output-0"
    nodes = [host]
    try:
        nodes.append(start([*options, f"{patience}0"], "elastic", tmp_path, env=env))
        until(lambda: "epoch 3:" in output_of(tmp_path))
        end(nodes[1])
        until(lambda: "1 rank(s)" in output_of(tmp_path))
        until(lambda: output_of(tmp_path).count("resumed from") == 1)
        time.sleep(5.0)  # by then the lost one is no longer counted as alive
        nodes.append(start([*options, f"{patience}0"], "elastic", tmp_path, env=env))
        until(lambda: output_of(tmp_path).count("2 rank(s)") == 2)
        until(lambda: host.poll() is not None)
        assert host.returncode == 0, output.read_text()
    finally:
        for node in nodes:
            end(node)
    epochs = [line.partition(":")[0] for line in output_of(tmp_path).splitlines() if line.startswith("epoch ")]
    assert set(epochs) == {f"epoch {number}" for number in range(1, 121)}, "an epoch was left out"
    assert len(epochs) <= 120 + 2, "more than the epoch that was running was trained again"


def output_of(out: Path) -> str:
    """Return the output of the ranks on all nodes."""
    return "".join(path.read_text() for path in sorted(out.glob("output-*")))


def end(process: subprocess.Popen[str]) -> None:
    """Kill torchrun and, with it, its ranks: they are sessions of their own."""
    ranks = [child.pid for child in processes.descendants(process.pid)]
    for pid in (process.pid, *ranks):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait(120)


@pytest.mark.slow
def test_a_hanging_rank_is_named_with_its_stack(tmp_path: Path) -> None:
    done = launch("hang", tmp_path)
    assert done.returncode != 0
    assert "error: rank 1 (process " in done.stderr and "makes no step" in done.stderr
    assert "rank 1 is here:" in done.stderr and "ranks_worker.py" in done.stderr


@pytest.mark.parametrize("what", ["long-test", "long-step"])
def test_rank_that_works_for_longer_than_the_watchdogs_limit_is_not_a_hang(tmp_path: Path, what: str) -> None:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(WORKER), what, str(tmp_path)]
    script = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, *{torchrun!r}]))"
    agent = Agent(tmp_path, script, hang_after_s=4.0)
    process = agent.start()
    try:
        process.communicate(timeout=200)
    finally:
        end(process)
    assert process.returncode == 0, agent.log("stderr.log").decode()
    assert len(results(tmp_path)) == 2
    assert not [event for event in agent.events("finding") if event["id"] == "hang"]
