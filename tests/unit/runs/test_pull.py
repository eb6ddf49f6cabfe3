"""A ready image that is not here: pulled before the run, reported as a build is, and only for a run that can start."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fakes import FakeBackend, OfflineBackend, a_plan, load_job
from seatrial.backends import table
from seatrial.errors import GpuContractError, ImageError, UsageError
from seatrial.job.model import Job
from seatrial.job.plan import Gpu, ImagePlan
from seatrial.runs.launch import _refuse_cut_down_image, prepare
from seatrial.runs.store import RunStore
from seatrial.system.host import Host

IMAGE = "registry.test/train:1"


class Told:
    """Return the lines about pulls, and the number of pulls."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.begun = 0

    @contextmanager
    def building(self) -> Iterator[Callable[[str], None]]:
        self.begun += 1
        yield self.lines.append


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "SEATRIAL_STATE": str(tmp_path / "state"), "SEATRIAL_LEASES": str(tmp_path / "leases")}


def job_on(backend: FakeBackend, folder: Path, monkeypatch: pytest.MonkeyPatch, **flags: object) -> Job:
    monkeypatch.setitem(table.BACKENDS, "docker", lambda environ: backend)
    project = folder / "project"
    project.mkdir()
    (project / "train.py").write_text("")
    wanted = {"target": "train.py", "on": "docker", "gpus": "none", "image": {"ready": IMAGE}, **flags}
    return load_job(project, wanted, cwd=project)


def test_a_pull_is_reported_and_the_plan_has_what_is_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]
) -> None:
    backend, reported = FakeBackend(), Told()
    monkeypatch.setattr(backend.images, "find_python", lambda reference: "/opt/venv/bin/python")
    prepared = prepare(job_on(backend, tmp_path, monkeypatch), Host(environ), building=reported.building)
    assert [line.partition(", pulled")[0] for line in reported.lines] == [
        f"pulling {IMAGE}",
        f"Pulling {IMAGE}",
        f"image ready: {IMAGE}",
    ]
    assert prepared.plan.image is not None and prepared.plan.image.python == "/opt/venv/bin/python"
    assert "unknown" not in [choice.value for choice in prepared.plan.choices]


def test_what_is_against_the_run_is_reported_before_minutes_of_pulling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]
) -> None:
    reported = Told()
    job = job_on(FakeBackend(), tmp_path, monkeypatch, gpu_memory="1GB")
    with pytest.raises(UsageError, match="--gpu-memory limits nothing"):
        prepare(job, Host(environ), building=reported.building)
    assert reported.begun == 0


def test_a_pull_that_fails_leaves_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]
) -> None:
    reported = Told()
    job = job_on(OfflineBackend(), tmp_path, monkeypatch)
    with pytest.raises(ImageError, match="cannot be pulled"):
        prepare(job, Host(environ), building=reported.building)
    assert reported.lines == [f"pulling {IMAGE}"]
    assert RunStore(job.project, Host(environ)).all() == []


L40S = Gpu(index=0, uuid="GPU-1", name="NVIDIA L40S", memory_bytes=48 * 10**9, minor=0, compute_capability="8.9")
BUILT = ImagePlan(tag="seatrial/x:1", build=True, architectures=("9.0",))
READY = ImagePlan(tag="x:1", build=False, env={"SEATRIAL_ARCHITECTURES": "9.0"})


@pytest.mark.parametrize("image", [BUILT, READY])
def test_an_image_cut_down_to_other_gpus_is_refused_by_name(image: ImagePlan) -> None:
    with pytest.raises(GpuContractError, match=r"code for 9\.0 only, but NVIDIA L40S is 8\.9"):
        _refuse_cut_down_image(a_plan(image=image, gpus=(L40S,)))
