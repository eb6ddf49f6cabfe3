"""Plans of scripts that import Horovod: the launcher, what stands in for it, and what is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from planning_sites import READY, a_site
from seatrial.errors import TargetError
from seatrial.job.model import ImageOptions, Job, Target
from seatrial.job.plan import Plan
from seatrial.job.script import script_facts
from seatrial.planning.plan import make_plan, with_defaults

TORCH = "import torch\nimport horovod.torch as hvd\nhvd.init()\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = tmp_path / "mnist"
    made.mkdir()
    return made


def plan_of(project: Path, source: str, *, gpus: int = 2, backend: str = "docker", ready: bool = False) -> Plan:
    (project / "train.py").write_text(source)
    target = Target(kind="script", value="train.py")
    image = ImageOptions(ready=READY) if ready else ImageOptions()
    job = Job(project=project, target=target, backend=backend, gpus=str(gpus) if gpus else "none", image=image)
    site = a_site(backend, project.parent, project, gpus=gpus)
    return make_plan(with_defaults(job, site.backend.traits), site, script_facts(target, project))


@pytest.mark.parametrize(("gpus", "launcher"), [(0, "none"), (1, "none"), (2, "torchrun")])
def test_a_rank_for_each_gpu(project: Path, gpus: int, launcher: str) -> None:
    plan = plan_of(project, TORCH, gpus=gpus)
    assert (plan.agent.launcher, plan.agent.processes, plan.agent.stand_ins) == (launcher, max(1, gpus), ("horovod",))


def test_horovod_is_not_installed_and_the_plan_is_reported(project: Path) -> None:
    (project / "requirements.txt").write_text("torch\nhorovod[pytorch]==0.28.1\nnumpy\n")
    plan = plan_of(project, TORCH)
    assert plan.image is not None
    assert not any("horovod" in text for text in plan.image.context_texts.values())
    reported = {choice.what: choice for choice in plan.choices}
    assert reported["horovod"].value == "seatrial's stand-in on torch.distributed"
    assert reported["horovod"].reason.startswith("train.py:2 imports horovod.torch; Horovod is not installed: its last")
    assert "horovod is left out" in reported["packages"].reason
    assert [warning for warning in plan.warnings if warning.startswith("This is not Horovod: train.py:2")]


def test_an_image_may_have_its_own(project: Path) -> None:
    plan = plan_of(project, TORCH, ready=True)
    assert plan.agent.stand_ins == ("horovod",)
    assert any("has no Horovod, seatrial's stand-in" in warning for warning in plan.warnings)
    other = plan_of(project, "import horovod.tensorflow as hvd\n", ready=True)
    assert (other.agent.stand_ins, other.agent.launcher) == (("horovod",), "torchrun")
    assert [each for each in other.warnings if each.endswith("fails there: nothing stands in for that part")]
    assert not any("torch.distributed" in each for each in other.warnings)


@pytest.mark.parametrize(
    ("source", "part", "instead"),
    [
        ("import horovod.tensorflow as hvd\n", "train.py:1 needs horovod.tensorflow", "tf.distribute.MirroredStrategy"),
        ("import horovod.tensorflow.keras as hvd\n", "horovod.tensorflow", "tf.distribute.MirroredStrategy"),
        (
            "import tensorflow as tf\nimport horovod.tensorflow as hvd\nconfig = tf.ConfigProto()\n",
            "train.py:2 needs horovod.tensorflow",  # before that the script is of TensorFlow 1
            "tf.distribute.MirroredStrategy",
        ),
        ("from horovod import keras\n", "horovod.keras", "tf.distribute.MirroredStrategy"),
        ("import horovod.spark.torch as hvd\n", "horovod.spark", "files that Spark has written"),
        ("from horovod.ray import RayExecutor\n", "horovod.ray", "seatrial starts the ranks"),
        (
            f"{TORCH}@hvd.elastic.run\ndef train(state): pass\n",
            "train.py:4 needs horovod.torch.elastic",
            "--restarts 3",
        ),
        ("from horovod.torch.elastic import TorchState\n", "horovod.torch.elastic", "--restarts 3"),
    ],
)
def test_what_nothing_stands_in_for_is_refused(project: Path, source: str, part: str, instead: str) -> None:
    with pytest.raises(TargetError) as refused:
        plan_of(project, source)
    assert part in refused.value.message and refused.value.run is not None
    assert instead in refused.value.run and "seatrial run train.py --gpus 2" in refused.value.run


def test_what_may_not_be_needed_is_not_refused(project: Path) -> None:
    source = f"{TORCH}def never(): import horovod.tensorflow\nif x: hvd.elastic\n"
    assert plan_of(project, source).agent.stand_ins == ("horovod",)


@pytest.mark.parametrize(
    "optional",
    [
        "if x: import horovod.tensorflow as hvd\n",
        "try: import horovod.keras as hvd\nexcept ImportError: hvd = None\n",
    ],
)
def test_a_tensorflow_script_that_can_do_without_gets_no_ranks_of_torch(project: Path, optional: str) -> None:
    plan = plan_of(project, f"import tensorflow as tf\n{optional}")
    assert (plan.agent.launcher, plan.agent.processes, plan.agent.stand_ins) == ("none", 1, ("horovod",))
    [warning] = [each for each in plan.warnings if "train.py:2 may import horovod." in each]
    assert "tf.distribute.MirroredStrategy" in warning
    assert not any("torch" in each for each in plan.warnings)
    ranks = plan_of(project, f"import torch\n{optional}torch.distributed.init_process_group()\n")
    assert ranks.agent.launcher == "torchrun"  # for a reason of its own
