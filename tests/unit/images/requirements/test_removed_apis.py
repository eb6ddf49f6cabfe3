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
        ("import tensorflow as tf\nw = tf.summary.FileWriter('x')\n", "", "train.py:2 tf.summary.FileWriter is Tens"),
        ("import tensorflow as tf\nw = tf.summary.create_file_writer('x')\n", "", None),
        (
            "import torch\nimport tensorflow as tf\ns = tf.Session()\n",
            "torch\n",
            "train.py:3 tf.Session is TensorFlow 1",
        ),
        ("import tensorflow as tf\nimport layers\n", "", None),
        ("import torch\n", "basicsr>=1.4.2\ntorch>=1.7\n", "basicsr>=1.4.2 does not run with torch 2"),
        ("import torch\n", "basicsr>=1.4.2\ntorch<2.2\n", None),
        (
            "from torchvision.transforms.functional_tensor import x\n",
            "",
            "train.py:1 imports torchvision.transforms.fu",
        ),
        ("from scipy.misc import imread\n", "", "train.py:1 imports scipy.misc.imread, which scipy 1.2"),
        ("from scipy.misc import imread\n", "scipy>=1.0\n", "train.py:1 imports scipy.misc.imread"),
        ("from scipy.misc import imread\n", "scipy<1.2\n", None),
        ("from scipy.misc import imread\n", "scipy==1.1.0\n", None),
        ("from scipy.misc import imread\n", "git+https://example.com/scipy\n", "train.py:1 imports scipy.misc.imread"),
        ("try:\n    from scipy.misc import imread\nexcept ImportError:\n    imread = None\n", "", None),
        ("import tensorflow.compat.v1 as tf\ns = tf.Session()\n", "", None),
        ("import tensorflow as tf\ndef old():\n    return tf.Session()\n", "", None),
        ("try:\n    from torch._six import inf\nexcept ImportError:\n    from torch import inf\n", "torch\n", None),
        ("import timm, torch\nassert timm.__version__ == '1.0.20'\n", "", None),
        ("from tensorflow.contrib.layers import l2_regularizer\n", "", "train.py:1 imports tensorflow.contrib, which"),
        (
            "from keras.layers.advanced_activations import LeakyReLU\n",
            "",
            "train.py:1 imports keras.layers.advanced_activations, which keras 2.9",
        ),
        ("from keras.layers.advanced_activations import LeakyReLU\n", "keras<2.9\n", None),
        ("from keras.utils import np_utils\n", "keras\ntensorflow==2.12.*\n", None),
        (
            "from keras.utils import np_utils\n",
            "tensorflow==2.13\n",
            "train.py:1 imports keras.utils.np_utils, which keras 2.13 and later lack; the plan has tensorflow 2.13.0",
        ),
        ("from keras.preprocessing.text import Tokenizer\n", "tensorflow==2.15.1\n", None),
        ("from keras.preprocessing.text import Tokenizer\n", "", "train.py:1 imports keras.preprocessing.text,"),
        ("from tensorflow.keras.preprocessing.text import Tokenizer\n", "", None),
        (
            "from keras.layers.core import Dense\nfrom keras.layers.convolutional_recurrent import ConvLSTM2D\n",
            "",
            "train.py:2 imports keras.layers.convolutional_recurrent, which keras 2.9",  # the oldest that is needed
        ),
        ("from keras.engine.topology import Layer\n", "", "train.py:1 imports keras.engine, which keras 2.13"),
        ("from keras.engine.topology import Layer\n", "keras==2.14.0\n", "train.py:1 imports keras.engine, which"),
        # Before TensorFlow 2.6, keras is what the list says.
        ("from keras.utils import multi_gpu_model\n", "tensorflow==2.4.0\nkeras==2.3.1\n", None),
        (
            "from keras.utils import multi_gpu_model\n",
            "tensorflow==2.4.0\nkeras==2.4.3\n",
            "train.py:1 imports keras.utils.multi_gpu_model, which keras 2.4 and later lack; no list asks for an older",
        ),
        (
            "from tensorflow.keras.utils import multi_gpu_model\n",
            "tensorflow==2.4.0\nkeras==2.3.1\n",
            "train.py:1 imports tensorflow.keras.utils.multi_gpu_model, which keras 2.4 and later lack; the plan has",
        ),
        (
            "from tensorflow.keras.layers.experimental import preprocessing\n",
            "tensorflow==2.19.0\n",
            "train.py:1 imports tensorflow.keras.layers.experimental, which keras 3.0",
        ),
        ("from tensorflow.keras.layers.experimental import preprocessing\n", "tensorflow==2.19.0\ntf-keras\n", None),
        (
            "from tensorflow.keras.wrappers.scikit_learn import KerasClassifier\n",
            "tensorflow==2.19.0\ntf-keras\n",
            "train.py:1 imports tensorflow.keras.wrappers.scikit_learn, which keras 2.13",
        ),
    ],
)
def test_code_and_versions(tmp_path: Path, source: str, requirements: str, said: str | None) -> None:
    if said is None:
        plan(tmp_path, source, requirements)
        return
    with pytest.raises(ConfigError) as caught:
        plan(tmp_path, source, requirements)
    assert caught.value.message.startswith(said) and caught.value.run


def test_the_way_out_of_a_removed_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(tmp_path, "from peft import prepare_model_for_int8_training\n", "peft\n")
    assert caught.value.run == "use peft.prepare_model_for_kbit_training, or pin peft<0.10"


@pytest.mark.parametrize(
    ("source", "listed", "way_out", "pinned"),
    [
        ("from keras.preprocessing.text import Tokenizer", "tensorflow==2.19.0", "tensorflow<2.16", "tensorflow<2.16"),
        ("from keras.utils import np_utils", "tensorflow==2.15.0", "tensorflow<2.13", "tensorflow<2.13"),
        (
            "from keras.utils import np_utils",
            "tensorflow==2.14.0\nkeras==2.14.0",
            "tensorflow<2.13 and keras<2.13",
            "tensorflow<2.13\nkeras<2.13",
        ),
        ("from keras.utils import np_utils", "tensorflow==2.4.0\nkeras", "keras<2.13", "tensorflow==2.4.0\nkeras<2.13"),
    ],
)
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
