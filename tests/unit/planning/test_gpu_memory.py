"""--gpu-memory: what no GPU, no framework or no such amount of memory can keep is refused."""

from pathlib import Path

import pytest

from seatrial.errors import UsageError
from seatrial.job.model import Job, Target
from seatrial.job.plan import Gpu
from seatrial.job.script import ScriptFacts
from seatrial.planning.options import gpu_memory_limit

GPUS = tuple(Gpu(index=index, uuid=f"GPU-{index}", name="NVIDIA A10", memory_bytes=24 * 10**9) for index in (0, 1))


def limit(memory_bytes: int, gpus: str = "2", framework: str | None = "torch") -> int | None:
    job = Job(project=Path("/p"), target=Target(kind="script", value="t.py"), gpus=gpus, gpu_memory_bytes=memory_bytes)
    return gpu_memory_limit(job, ScriptFacts(framework=framework), GPUS if gpus != "none" else ())


def test_what_fits_is_the_limit() -> None:
    assert limit(24 * 10**9) == 24 * 10**9


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"memory_bytes": 80 * 10**9}, r"--gpu-memory 80 GB: GPU 0 \(NVIDIA A10\) has 24 GB"),
        ({"memory_bytes": 10**9, "gpus": "none"}, "limits nothing on a run without GPUs"),
        ({"memory_bytes": 10**9, "framework": None}, "cannot be enforced on this target"),
    ],
)
def test_what_cannot_be_kept_is_one_sentence(asked: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        limit(**asked)  # type: ignore[arg-type]
