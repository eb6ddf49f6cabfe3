"""Messages of a launch before anything starts."""

from pathlib import Path

import pytest

from fakes import a_plan
from seatrial.errors import GpuContractError
from seatrial.job.plan import Gpu, ImagePlan
from seatrial.runs.launch import _nothing_to_resume, _refuse_cut_down_image
from seatrial.runs.run import Run

L40S = Gpu(index=0, uuid="GPU-1", name="NVIDIA L40S", memory_bytes=48 * 10**9, minor=0, compute_capability="8.9")
BUILT = ImagePlan(tag="seatrial/x:1", build=True, architectures=("9.0",))
READY = ImagePlan(tag="x:1", build=False, env={"SEATRIAL_ARCHITECTURES": "9.0"})


def an_earlier_run(project: Path) -> Run:
    run = Run(project.parent / "record", project / ".seatrial" / "runs" / "20261120-231501-k3f9")
    run.checkpoints.mkdir(parents=True)
    return run


def test_resuming_a_run_without_checkpoints_reports_that_it_begins_anew(tmp_path: Path) -> None:
    (warning,) = _nothing_to_resume("worker1", an_earlier_run(tmp_path))
    assert "worker1" in warning
    assert "$SEATRIAL_RESUME_DIR" in warning


@pytest.mark.parametrize("image", [BUILT, READY])
def test_an_image_cut_down_to_other_gpus_is_refused_by_name(image: ImagePlan) -> None:
    with pytest.raises(GpuContractError, match=r"code for 9\.0 only, but NVIDIA L40S is 8\.9"):
        _refuse_cut_down_image(a_plan(image=image, gpus=(L40S,)))
