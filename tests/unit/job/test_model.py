"""Job as plan.json keeps it: written as before, and read from runs of earlier versions."""

from __future__ import annotations

import json
from pathlib import Path

from seatrial.job.cluster import Volume
from seatrial.job.gpu_request import GpuRequest
from seatrial.job.keys import Mount
from seatrial.job.model import Job

#: What version 0.1.0 wrote, when a Job held its GPU request and its mounts as text; every table of the file is in it.
RECORDED = (Path(__file__).parents[2] / "recorded" / "job-0.1.0.json").read_text()


def test_a_job_of_an_older_run_is_read_as_values() -> None:
    job = Job.model_validate_json(RECORDED)
    assert job.gpus == GpuRequest("count", count=2, capabilities=("compute", "utility"))
    assert job.mounts == (
        Mount(source=Path("/home/ada/mnist/data"), target="/extra", read_only=True),
        Mount(source=Path("/home/ada/mnist/extra"), target="/more"),
    )
    assert job.kubernetes.data == Volume(kind="pvc", value="mnist", path="small")
    assert (job.criteria.metrics, job.criteria.mean_utilization_pct) == ({"test_accuracy": ">= 0.985"}, None)


def test_a_job_is_written_as_before() -> None:
    written = json.loads(Job.model_validate_json(RECORDED).model_dump_json())
    recorded = json.loads(RECORDED)
    assert recorded["mounts"][1].endswith(":/more:rw")
    recorded["mounts"][1] = recorded["mounts"][1].removesuffix(":rw")  # read-write is what a mount is without a word
    assert recorded["kubernetes"].pop("kind") == "auto" and written["kubernetes"].pop("kind") == "job"
    assert written["kubernetes"].pop("queue") is None  # newer than the recording
    for key in ("runtime", "gpu_claims", "requests"):
        written["kubernetes"].pop(key)
    assert written.pop("serve") is None and written.pop("own") is None
    assert written.pop("no_hook") is False
    assert written.pop("no_tune") is False and written.pop("tuning") is None
    assert set(written.pop("tune").values()) == {None}
    assert written["target"].pop("typed") == ""
    assert not any(written.pop("notify").values()) and written.pop("metrics") == {}
    assert not any(ask.pop("hides") for ask in written["asks"])
    assert written == recorded
