"""Two ranks over Gloo, started by torchrun: the same training as one rank, whatever happens to one of them."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch
WORKER = Path(__file__).with_name("ranks_worker.py")


def launch(what: str, out: Path, world: int = 2, restarts: int = 0) -> subprocess.CompletedProcess[str]:
    out.mkdir(parents=True, exist_ok=True)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    command = [*torchrun, f"--max-restarts={restarts}", str(WORKER), what, str(out)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


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


@pytest.mark.parametrize(("what", "micro"), [("plain", 16), ("forward", 4), ("backward", 4)])
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


@pytest.mark.slow
def test_a_hanging_rank_is_named_with_its_stack(tmp_path: Path) -> None:
    done = launch("hang", tmp_path)
    assert done.returncode != 0
    assert "error: rank 1 (process " in done.stderr and "makes no step" in done.stderr
    assert "rank 1 is here:" in done.stderr and "ranks_worker.py" in done.stderr
