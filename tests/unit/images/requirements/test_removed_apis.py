"""Code that the chosen versions cannot run is refused before the build."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.errors import ConfigError
from seatrial.images.plan import plan_image
from seatrial.job.model import Job, Target
from seatrial.job.script import script_facts
from tables import cases


def plan(project: Path, source: str, requirements: str = "") -> None:
    (project / "train.py").write_text(source)
    if requirements:
        (project / "requirements.txt").write_text(requirements)
    job = Job(project=project, target=Target(kind="script", value="train.py"))
    plan_image(job, script=script_facts(job.target, project), cpu_only=True)


@cases("source", "requirements", "printed")
def test_code_and_versions(tmp_path: Path, source: str, requirements: str, printed: str | None) -> None:
    if printed is None:
        plan(tmp_path, source, requirements)
        return
    with pytest.raises(ConfigError) as caught:
        plan(tmp_path, source, requirements)
    assert caught.value.message.startswith(printed) and caught.value.run


def test_the_way_out_of_a_removed_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(tmp_path, "from peft import prepare_model_for_int8_training\n", "peft\n")
    assert caught.value.run == "use peft.prepare_model_for_kbit_training, or pin peft<0.10"


@cases("source", "listed", "way_out", "pinned")
def test_the_pin_that_is_named_is_a_way_out(
    tmp_path: Path, source: str, listed: str, way_out: str, pinned: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(tmp_path, source, listed)
    assert caught.value.run is not None and caught.value.run.endswith(f", or pin {way_out}")
    plan(tmp_path, source, pinned)


def test_no_pin_is_named_where_no_known_tensorflow_is_old_enough(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(tmp_path, "from keras.utils import multi_gpu_model\n", "keras\n")
    assert caught.value.run == "build the model under tf.distribute.MirroredStrategy().scope()"
