"""A framework image keeps its framework, and TensorFlow 1 is planned on NVIDIA's last image with it."""

from pathlib import Path
from typing import Any

import pytest

from image_plans import SCRIPT, Planned, planned
from seatrial.errors import ConfigError, GpuContractError, StackError
from seatrial.images.build.size import installed_bytes
from seatrial.images.lint.check import check_dockerfile
from seatrial.job.reading.keras_names import with_keras_backend
from seatrial.job.script import script_facts
from seatrial.stack.facts import TENSORFLOW_1
from seatrial.stack.machine import parse_target

SESSION = "import tensorflow as tf\ntf.Session()\n"
IN_A_CLASS = (
    "import sys\nimport tensorflow as tf\nclass Net:\n    def build(self):\n        tf.placeholder(1)\n"
    "if sys.argv[1:]:\n    Net().build()\n"
)


def plan(project: Path, source: str, listed: str = "", gpu: str | None = "h100", **image: Any) -> Planned:
    files = {"train.py": source, **({"requirements.txt": listed} if listed else {})}
    return planned(project, files, cpu_only=gpu is None, target=gpu, **image)


def lines(made: Planned) -> list[str]:
    return made.image.context_texts.get("packages/requirements.txt", "").split()


KERAS_1 = "from keras.layers import Conv2D\nConv2D(8, border_mode='same')\n"


@pytest.mark.parametrize(
    ("source", "listed", "evidence"),
    [
        (SESSION, "", "train.py:2 tf.Session is TensorFlow 1"),
        (SESSION, "tensorflow>=0.12\n", "train.py:2 tf.Session is TensorFlow 1"),
        ("import torch\n" + SESSION, "torch\n", "train.py:3 tf.Session is TensorFlow 1"),
        ("import tensorflow as tf\ntf.summary.FileWriter('x')\n", "", "tf.summary.FileWriter is TensorFlow 1"),
        ("from tensorflow.contrib import slim\n", "", "train.py:1 tensorflow.contrib is TensorFlow 1"),
        (
            "from tensorflow.keras.layers import CuDNNLSTM\n",
            "",
            "train.py:1 tensorflow.keras.layers.CuDNNLSTM is TensorFlow 1",
        ),
        ("import tensorflow\n", "tensorflow-gpu==1.8.0\n", "tensorflow==1.8.0 (requirements.txt) is TensorFlow 1"),
        (IN_A_CLASS, "", "train.py:5 tf.placeholder is TensorFlow 1"),
        ("from keras.utils import multi_gpu_model\n", "keras\n", "train.py:1 keras.utils.multi_gpu_model, which no"),
        (KERAS_1, "", "train.py:2 Conv2D(border_mode=…), which no Keras from 2.4 on takes, is TensorFlow 1"),
        ("import keras\nkeras.Model().fit(nb_epoch=3)\n", "keras\n", "train.py:2 fit(nb_epoch=…), which no"),
        ("import keras\n", "keras==2.2.4\n", "what keras==2.2.4 (requirements.txt) runs on is TensorFlow 1"),
    ],
)
@pytest.mark.parametrize("gpu", ["h100", None])
def test_tensorflow_1_is_planned_on_the_image_that_has_it(
    tmp_path: Path, source: str, listed: str, evidence: str, gpu: str | None
) -> None:
    made = plan(tmp_path, source, listed, gpu)
    assert made.image.base == TENSORFLOW_1
    assert made.chosen("tensorflow") == ["1.15.5, of NVIDIA's image"] and {*made.chosen("python")} == {"3.8"}
    assert evidence in made.reason("tensorflow")
    assert not any(line.startswith("tensorflow") for line in lines(made))


@pytest.mark.parametrize(
    ("source", "listed"),
    [
        ("import tensorflow.compat.v1 as tf\ntf.Session()\n", ""),
        ("import tensorflow\n", "tensorflow\nkeras\n"),
        (IN_A_CLASS + "tf.keras.Model()\n", ""),
        ("import keras\n", "keras>=2.2\n"),
        ("import keras\ndef build(nb_epoch, nb_row): ...\nbuild(nb_epoch=3, nb_row=1)\n", "keras\n"),
        ("import keras\nclass Net:\n    def fit(self, nb_epoch): ...\nNet().fit(nb_epoch=3)\n", "keras\n"),
        ("import keras\ndef Block(nb_filter, nb_row): ...\nBlock(nb_filter=3, nb_row=1)\n", "keras\n"),
        (KERAS_1.replace("from keras", "from tensorflow.keras"), ""),
        ("import tensorflow\n", "tensorflow>=1.15,<2.16\n"),
    ],
)
def test_code_that_tensorflow_2_runs_stays_with_it(tmp_path: Path, source: str, listed: str) -> None:
    assert plan(tmp_path, source, listed).image.stack["tensorflow"].startswith("2.")


OPTIONAL = "import torch\ntry:\n    import tensorflow as tf\n    tf.Summary\nexcept ImportError:\n    tf = None\n"


@pytest.mark.parametrize("source", [OPTIONAL, "import torch\nimport transforms as tf\ntf.layers\n"])
def test_an_option_of_the_code_and_another_module_called_tf_need_no_tensorflow_1(tmp_path: Path, source: str) -> None:
    assert plan(tmp_path, source, "torch\ntransforms\n").image.base == "python:3.11-slim-bookworm"


def test_the_images_framework_is_not_counted_above_it_and_its_python_is_named_once(tmp_path: Path) -> None:
    made = plan(tmp_path, "import torch\n" + SESSION, "torch\n")
    assert made.chosen("python") == ["3.8"]
    assert installed_bytes(made.image) == installed_bytes(made.image.changed(also={}))


def test_names_of_an_old_keras_are_planned_with_a_tensorflow_for_the_gpu(tmp_path: Path) -> None:
    source = "from keras.layers.advanced_activations import LeakyReLU\n"
    assert plan(tmp_path, source, gpu="a100").image.stack["tensorflow"].startswith("2.8")
    made = plan(tmp_path, source, gpu="h100")
    assert made.image.base == TENSORFLOW_1 and lines(made) == ["keras"]
    assert made.image.context_texts["packages/constraints.txt"].startswith("keras<2.4")


def test_code_of_tensorflow_1_under_a_list_that_demands_tensorflow_2_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train.py:2 tf.Session is TensorFlow 1") as caught:
        plan(tmp_path, SESSION, "tensorflow>=2.4\n")
    assert "write tensorflow<2 in requirements.txt" in str(caught.value.run)


def test_a_pre_release_of_tensorflow_2_is_not_replaced_by_tensorflow_1(tmp_path: Path) -> None:
    with pytest.raises(StackError, match=r"tensorflow==2.0.0b1 \(requirements.txt\) is older than tensorflow 2"):
        plan(tmp_path, "import tensorflow\n", "tensorflow==2.0.0b1\n")


def test_the_images_packages_stay_and_each_change_is_named(tmp_path: Path) -> None:
    listed = "tensorflow-gpu==1.4.0\nnumpy==1.14.5\nh5py\nprotobuf\nkeras==2.6\ntensorflow-hub\npillow==9.0.0\n"
    made = plan(tmp_path, "import keras, tensorflow\n", listed)
    assert lines(made) == ["keras<2.4", "tensorflow-hub", "pillow==9.0.0"]
    assert "tensorflow-hub<0.13\n" in made.image.context_texts["packages/constraints.txt"]
    why = "tensorflow==1.4.0 → 1.15.5 of NVIDIA's image, the only TensorFlow 1 with code for H100"
    assert why in made.reason("tensorflow") and "numpy==1.14.5 → >=1.22,<1.24 of" in made.reason("tensorflow")
    assert "protobuf" not in made.reason("tensorflow")


def test_a_pin_that_fails_on_the_image_becomes_the_next_release_that_runs(tmp_path: Path) -> None:
    listed = "tensorflow<2\njoblib==0.13.2\npandas==0.25.3\ncloudpickle>=1\n"
    made = plan(tmp_path, "import joblib, pandas, tensorflow\n", listed)
    assert lines(made) == ["joblib==0.14", "pandas==1.0.5", "cloudpickle>=1"]
    assert "joblib==0.13.2 → 0.14 of NVIDIA's image" in made.reason("tensorflow")


def test_a_fork_from_an_address_is_not_replaced_by_a_release_for_the_image(tmp_path: Path) -> None:
    fork = "keras @ https://e.org/theirs/keras/archive/master.zip"
    made = plan(tmp_path, "import tensorflow\nfrom keras.utils import multi_gpu_model\n", f"tensorflow<2\n{fork}\n")
    assert made.image.base == TENSORFLOW_1 and " ".join(lines(made)) == fork
    assert "keras" not in made.image.context_texts["packages/constraints.txt"]


def test_a_python_before_the_images_does_not_bind(tmp_path: Path) -> None:
    setup = "from setuptools import setup\nsetup(install_requires=['tensorflow<2'], python_requires='<3.8')\n"
    made = planned(tmp_path, {"setup.py": setup, "train.py": ""})
    assert made.image.base == TENSORFLOW_1 and "the project requires Python <3.8" in made.reason("tensorflow")
    (tmp_path / "setup.py").unlink()
    made = planned(tmp_path, {"environment.yml": "dependencies:\n- python=3.6\n- tensorflow=1.13\n", "train.py": ""})
    assert made.image.base == TENSORFLOW_1
    assert "environment.yml requires Python ==3.6.*, which seatrial does not support: not used" in made.image.warnings


def test_syntax_that_the_images_python_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is syntax of Python 3.10 and later, and nvcr.io\S* has Python 3.8"):
        plan(tmp_path, SESSION + "match 1:\n    case 1: pass\n")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("b200", "has code for sm_60, sm_61, sm_70, sm_75, sm_80, sm_86, sm_90, but B200 is sm_100"),
        ("driver=470.57,gpu=V100", "needs driver 525.60.13 or later"),
    ],
)
def test_gpus_and_drivers_of_no_image_are_refused(tmp_path: Path, target: str, words: str) -> None:
    with pytest.raises(GpuContractError, match=words):
        plan(tmp_path, SESSION, gpu=target)


def test_a_framework_image_as_the_users_base_keeps_its_framework(tmp_path: Path) -> None:
    base = "pytorch/pytorch:2.4.0-cuda12.1-cudnn9-runtime"
    made = plan(
        tmp_path, "import torch, torchvision, einops\n", "torch==2.3.1\ntorchvision==0.18.1\neinops\n", base=base
    )
    assert made.image.base == base and made.image.stack["torch"] == "2.4.0"
    assert lines(made) == ["torchvision", "einops"]
    assert "torch==2.3.1 → 2.4.0 of the image pytorch/pytorch:2.4.0" in made.reason("torch")
    of_nvidia = plan(tmp_path, "import torch\n", "torch==2.3.1\n", base="nvcr.io/nvidia/pytorch:24.01-py3")
    assert "torch" not in of_nvidia.image.stack and lines(of_nvidia) == []


def test_packages_are_installed_above_the_base_and_its_own_are_kept(tmp_path: Path) -> None:
    text = plan(tmp_path, SESSION, "tensorflow==1.15\nscipy\n").image.dockerfile or ""
    assert text.startswith("# ") and f"FROM {TENSORFLOW_1} AS base" in text
    assert (
        "python3 -m venv --system-site-packages --without-pip /opt/venv && /opt/venv/bin/python3 /mnt/layer.py keep"
        in text
    )
    assert "-c /opt/venv/framework.txt" in text and "slim.pyz" not in text
    (tmp_path / "Dockerfile").write_text(text)
    assert [each for each in check_dockerfile(tmp_path / "Dockerfile") if each.severity == "error"] == []


def test_a_keras_that_only_parts_of_it_are_listed_of_is_installed_above_the_image(tmp_path: Path) -> None:
    listed = "keras-applications==1.0.8\nkeras-preprocessing==1.1.0\n"
    assert "keras" in lines(plan(tmp_path, "from keras.utils import to_categorical\n" + SESSION, listed))


@pytest.mark.parametrize(
    ("source", "build"),
    [
        ("import torch\nfrom keras.utils import to_categorical\n", "cpu"),
        ("import torch\nfrom keras.models import Sequential\n", "and-cuda"),
        ('import os, torch\nos.environ["KERAS_BACKEND"] = "torch"\nimport keras\n', None),
    ],
)
def test_keras_next_to_torch_gets_the_tensorflow_that_it_starts_with(
    tmp_path: Path, source: str, build: str | None
) -> None:
    (tmp_path / "train.py").write_text(source)
    script = with_keras_backend(script_facts(SCRIPT, tmp_path), {}, tmp_path)
    machine = parse_target("h100")
    assert planned(tmp_path, script=script, cpu_only=False, machine=machine).image.also.get("tensorflow") == build
