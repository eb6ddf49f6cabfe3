"""A trial's image, whose build ends with the search, and processes that an ended trial left on its GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from seatrial.errors import ImageError
from seatrial.images.build.progress import CACHED, READY
from seatrial.job.model import Job, Target
from seatrial.job.plan import Gpu
from seatrial.probe.nvml import ComputeProcess
from seatrial.runs.run import Run
from seatrial.search import runner
from seatrial.search.request import Definition
from seatrial.search.search import Note, Search
from seatrial.search.space import parse_space
from seatrial.search.study import Study
from seatrial.system.host import Host

STEP = "[build 4/7] RUN pip install --require-hashes -r requirements.txt"


@pytest.fixture
def search(tmp_path: Path) -> Search:
    study = Study.create(tmp_path / "study.sqlite", Definition("s", "t", ("lr=1",), "grid", None))
    job = Job(project=tmp_path, target=Target(kind="script", value="train.py"))
    notes: list[str] = []
    return Search(study, parse_space(["lr=1"]), None, job, Host(), notes.append)


def started(monkeypatch: pytest.MonkeyPatch, search: Search, build: Callable[[Callable[[str], None]], None]) -> bool:
    """Start a trial's run whose build is ``build``."""
    monkeypatch.setattr(runner.launch, "start", lambda prepared, environ, progress: build(progress))
    return runner.start_run(search, SimpleNamespace())  # type: ignore[arg-type]


def test_the_build_is_shown_where_the_command_line_shows_builds(
    monkeypatch: pytest.MonkeyPatch, search: Search
) -> None:
    shown: list[str] = []

    @contextmanager
    def building() -> Iterator[Callable[[str], None]]:
        shown.append("begins")
        yield shown.append
        shown.append("ends")

    def build(progress: Callable[[str], None]) -> None:
        for line in (STEP, READY, CACHED):
            progress(line)

    search.building = building
    assert started(monkeypatch, search, build)
    assert shown == ["begins", STEP, READY, "ends"], "that an image is there still needs no line"


@pytest.mark.parametrize(
    ("over", "line", "error", "started_or_raised"),
    [
        (False, STEP, None, True),
        (True, STEP, AssertionError("it went on"), False),
        (True, None, ImageError("interrupted"), False),
        (False, None, ImageError("no such package"), ImageError),
    ],
    ids=["its steps are reported", "over at the next line", "Ctrl-C reaches the builder first", "it fails by itself"],
)
def test_a_build_ends_with_the_search(
    monkeypatch: pytest.MonkeyPatch,
    search: Search,
    over: bool,
    line: str | None,
    error: Exception | None,
    started_or_raised: bool | type[Exception],
) -> None:
    notes: list[str] = []
    search.note = notes.append

    def build(progress: Callable[[str], None]) -> None:
        if over:
            search.over.set()
        if line:
            progress(line)
        if error:
            raise error

    monkeypatch.setattr(runner, "_INTERRUPT_S", 0.01)
    if isinstance(started_or_raised, bool):
        assert started(monkeypatch, search, build) is started_or_raised
    else:
        with pytest.raises(started_or_raised):
            started(monkeypatch, search, build)
    assert notes == (["installing the packages with pip"] if line and not over else [])


def test_a_pull_ends_with_the_search_as_well(monkeypatch: pytest.MonkeyPatch, search: Search) -> None:
    notes: list[str] = []
    search.note = notes.append
    (search.job.project / "train.py").write_text('import argparse\nargparse.ArgumentParser().add_argument("--lr")\n')

    def pulled(job: Job, environ: object, *, building: Callable[[], AbstractContextManager[Note]]) -> None:
        with building() as write:
            write("pulling registry.test/train:1")
            search.over.set()
            write("1: Pulling from train")
            raise AssertionError("it went on")

    monkeypatch.setattr(runner.launch, "prepare", pulled)
    trial = search.ask()
    assert trial is not None and runner.start_trial(search, trial) is None
    assert notes == ["pulling registry.test/train:1"]
    assert search.problem is None and [one.state for one in search.study.trials()] == ["waiting"]


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
    assert runner.leftover_processes(Run(tmp_path / RUN_ID, tmp_path), [], hurry) is None
