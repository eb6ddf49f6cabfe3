"""Processes that an ended trial left on its GPU: real ones, listed by a fake driver's NVML."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from seatrial.job.plan import Gpu
from seatrial.probe.nvml import ComputeProcess
from seatrial.runs.run import Run
from seatrial.search import runner

GPU = Gpu(index=0, uuid="GPU-1", name="H200", memory_bytes=1)
RUN_ID = "20261122-000000-test"


@pytest.fixture
def leftover() -> Iterator[int]:
    """A process that has inherited the run's environment."""
    environ = {**os.environ, "SEATRIAL_RUN_DIR": f"/p/.seatrial/runs/{RUN_ID}/outputs"}
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environ)
    yield process.pid
    process.kill()
    process.wait()


def test_a_process_of_the_run_is_reported_and_others_are_not(
    tmp_path: Path, leftover: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry = threading.Event()
    hurry.set()
    listed = [ComputeProcess(os.getpid(), 5), ComputeProcess(leftover, 2_000_000_000), ComputeProcess(1 << 22, None)]
    monkeypatch.setattr(runner, "compute_processes", lambda uuid: listed if uuid == GPU.uuid else [])
    reported = runner.leftover_processes(Run(tmp_path / RUN_ID, tmp_path), [GPU], hurry)
    assert reported is not None and f"process {leftover} of the ended run is still on GPU 0 with 2" in reported
    assert f"kill {leftover}" in reported
    assert runner.leftover_processes(Run(tmp_path / "20261122-000000-else", tmp_path), [GPU], hurry) is None


def test_without_gpus_there_is_nothing_to_ask(tmp_path: Path) -> None:
    assert runner.leftover_processes(Run(tmp_path / RUN_ID, tmp_path), [], threading.Event()) is None
