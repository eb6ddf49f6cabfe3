"""A plan with a GPU has something that computes on NVIDIA's."""

from pathlib import Path

import pytest

from seatrial.errors import ConfigError
from seatrial.images.plan import plan_image
from seatrial.job.model import Job, Target
from seatrial.job.script import script_facts


def plan(project: Path, text: str, listed: str, *, cpu_only: bool = False) -> str:
    (project / "train.py").write_text(text)
    (project / "requirements.txt").write_text(listed)
    target = Target(kind="script", value="train.py")
    made, choices = plan_image(
        Job(project=project, target=target), script=script_facts(target, project), cpu_only=cpu_only
    )
    [packages] = [choice for choice in choices if choice.what == "packages"]
    return f"{made.stack.get('torch')} {packages.reason}"


LATER = "import sys\nif sys.argv[1:]:\n    import torch\n"


def test_a_framework_that_is_imported_later_is_added_for_a_gpu(tmp_path: Path) -> None:
    said = plan(tmp_path, LATER, "numpy\n")
    assert said.startswith("2.") and "torch, which train.py:3 imports and the list leaves out" in said
    assert plan(tmp_path, LATER, "numpy\n", cpu_only=True).startswith("None ")


@pytest.mark.parametrize(
    ("text", "listed", "message"),
    [
        ("import mlx.core\n", "mlx\n", "train.py:1 imports mlx, which computes on Apple's GPUs"),
        (
            "import torch\n",
            "--extra-index-url https://download.pytorch.org/whl/rocm6.2\ntorch\n",
            "requirements.txt names packages for AMD's GPUs",
        ),
    ],
    ids=["Apple", "AMD"],
)
def test_other_makers_get_one_clear_sentence(tmp_path: Path, text: str, listed: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(tmp_path, text, listed)
    assert plan(tmp_path, text, listed, cpu_only=True)
