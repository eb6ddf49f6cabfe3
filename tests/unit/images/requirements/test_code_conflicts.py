"""Code that the chosen versions cannot run is refused before the build."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.errors import ConfigError
from seatrial.images.plan import plan_image
from seatrial.job.model import Job, Target
from seatrial.job.script import script_facts


def plan(project: Path, source: str, requirements: str = "") -> None:
    (project / "train.py").write_text(source)
    if requirements:
        (project / "requirements.txt").write_text(requirements)
    job = Job(project=project, target=Target(kind="script", value="train.py"))
    plan_image(job, script=script_facts(job.target, project), cpu_only=True)


@pytest.mark.parametrize(
    ("source", "requirements", "said"),
    [
        ("from torch._six import inf\n", "torch\n", "train.py:1 imports torch._six, which torch 1.13"),
        ("import torchtext\nimport torch\n", "", "train.py:1 imports torchtext, which torch 2.4"),
        ("import timm, torch\nassert timm.__version__ == '0.3.2'\n", "", "timm==0.3.2 does not run with torch 2"),
        ("import tensorflow as tf\ns = tf.Session()\n", "", "train.py:2 tf.Session is TensorFlow 1"),
        ("import tensorflow as tf\nimport layers\n", "", None),
        ("import tensorflow.compat.v1 as tf\ns = tf.Session()\n", "", None),
        ("import tensorflow as tf\ndef old():\n    return tf.Session()\n", "", None),
        ("try:\n    from torch._six import inf\nexcept ImportError:\n    from torch import inf\n", "torch\n", None),
        ("import timm, torch\nassert timm.__version__ == '1.0.20'\n", "", None),
    ],
)
def test_code_and_versions(tmp_path: Path, source: str, requirements: str, said: str | None) -> None:
    if said is None:
        plan(tmp_path, source, requirements)
        return
    with pytest.raises(ConfigError) as caught:
        plan(tmp_path, source, requirements)
    assert caught.value.message.startswith(said) and caught.value.run
