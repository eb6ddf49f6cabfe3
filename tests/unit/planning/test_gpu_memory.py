"""--gpu-memory: what no GPU, no framework or no such amount of memory can keep is refused."""

from pathlib import Path

import pytest

from planning_sites import a_site
from seatrial.errors import UsageError
from seatrial.job.model import Job, Target
from seatrial.job.plan import Gpu
from seatrial.job.script import ScriptFacts, script_facts
from seatrial.planning.options import gpu_memory_limit
from seatrial.planning.plan import make_plan, with_defaults

GPUS = tuple(Gpu(index=index, uuid=f"GPU-{index}", name="NVIDIA A10", memory_bytes=24 * 10**9) for index in (0, 1))


def limit(memory_bytes: int, gpus: str = "2", framework: str | None = "torch") -> int | None:
    job = Job(project=Path("/p"), target=Target(kind="script", value="t.py"), gpus=gpus, gpu_memory_bytes=memory_bytes)
    return gpu_memory_limit(job, ScriptFacts(framework=framework), GPUS if gpus != "none" else ())


def test_what_fits_is_the_limit() -> None:
    assert limit(24 * 10**9) == 24 * 10**9


@pytest.mark.parametrize(
    ("requested", "words"),
    [
        ({"memory_bytes": 80 * 10**9}, r"--gpu-memory 80 GB: GPU 0 \(NVIDIA A10\) has 24 GB"),
        ({"memory_bytes": 10**9, "gpus": "none"}, "limits nothing on a run without GPUs"),
        ({"memory_bytes": 10**9, "framework": None}, "cannot be enforced on this target"),
    ],
)
def test_what_cannot_be_kept_is_one_sentence(requested: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        limit(**requested)  # type: ignore[arg-type]


def test_the_plan_reports_the_limit(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("import tensorflow as tf\n")
    job = Job(project=tmp_path, target=Target(kind="script", value="t.py"), gpus="2", gpu_memory_bytes=8 * 10**9)
    site = a_site("docker", tmp_path.parent, tmp_path, gpus=2)
    plan = make_plan(with_defaults(job, site.backend.traits), site, script_facts(job.target, tmp_path))
    reported = {choice.what: choice for choice in plan.choices}
    assert reported["GPU memory"].value == "8 GB" and reported["GPU memory"].reason.startswith(
        "--gpu-memory: of each GPU"
    )
    assert reported["launcher"].reason == "no sign that the script joins several workers (tf.distribute)"
