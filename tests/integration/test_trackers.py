"""Trackers with the real packages: what a recipe sends is what TensorBoard and MLflow's database hold."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
for package in ("torch", "sklearn", "tensorboard", "mlflow", "sqlalchemy", "alembic"):
    pytest.importorskip(package, reason=f"{package} is not installed")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402


def train(models: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "seatrial.recipes.digits", "--models", str(models), "--track", "mlflow", *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=models)


def mlflow_rows(models: Path, query: str) -> list[tuple[object, ...]]:
    with sqlite3.connect(models / "mlflow" / "mlflow.db") as database:
        return database.execute(query).fetchall()


@pytest.mark.slow
def test_both_at_once(tmp_path: Path) -> None:
    done = train(tmp_path, "--epochs", "2", "--track", "tensorboard")
    assert done.returncode == 0, done.stderr
    [ended] = [line for line in done.stdout.splitlines() if line.startswith("epoch 2: loss")]
    accuracies = [(step, value) for step, value in scalars(tmp_path, "test/accuracy")]
    assert len(accuracies) == 2 and f"accuracy {accuracies[1][1]:.2%}" in ended
    assert len(scalars(tmp_path, "train/step_loss")) > 2
    assert len(scalars(tmp_path, "train/loss")) == len(scalars(tmp_path, "test/loss")) == 2
    kept = mlflow_rows(tmp_path, "select step, value from metrics where key = 'test_accuracy' order by step")
    assert [(step, pytest.approx(value)) for step, value in kept] == accuracies
    assert mlflow_rows(tmp_path, "select status from runs") == [("FINISHED",)]
    assert {path.name for path in tmp_path.iterdir()} == {
        *("checkpoints", "digits.examples.safetensors", "digits.pth", "digits.safetensors", "mlflow", "tensorboard")
    }


@pytest.mark.slow
def test_a_training_that_fails_is_a_failed_run(tmp_path: Path) -> None:
    done = train(tmp_path, "--epochs", "1", "--learning-rate", "1e30")
    assert done.returncode == 1 and "error: the loss became" in done.stderr
    assert mlflow_rows(tmp_path, "select status from runs") == [("FAILED",)]


def scalars(models: Path, tag: str) -> list[tuple[int, float]]:
    """Return the points that TensorBoard reads of one curve."""
    events = EventAccumulator(str(models / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]
