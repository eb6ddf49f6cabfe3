"""What a plan makes of a list: the project itself, code that its versions cannot run, Debian packages."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from packaging.markers import default_environment

from image_plans import planned
from seatrial.errors import ConfigError, GpuContractError
from seatrial.findings.match import match_text
from seatrial.images.requirements.adjust import system_packages
from seatrial.images.requirements.imports import absent_data
from seatrial.images.requirements.pip_format import Requirements
from seatrial.job.model import Target
from seatrial.job.plan import ImagePlan
from seatrial.job.script import ScriptFacts, script_facts
from seatrial.stack.machine import parse_target
from tables import cases, constant

SETUP = constant(__file__, "SETUP")
PYPROJECT = (
    '[project]\nname = "my_net"\ndependencies = ["torch"]\n[project.optional-dependencies]\n'
    'dev = ["six"]\nall = ["my-net[dev]", "attrs"]\n'
)
SETUP_CFG = (
    "[options]\ninstall_requires =\n    torch  # the framework\n    six; python_version > '3'\n\n"
    "[options.extras_require]\nDev_Tools = attrs\n"
)


def installed(project: Path, requirements: str, **files: str) -> tuple[list[str], tuple[str, ...]]:
    """(what pip gets, warnings)."""
    plan = planned(project, {"requirements.txt": requirements, "train.py": "import torch\n", **files}).image
    lines = [line for text in plan.context_texts.values() for line in text.splitlines()]
    return [line for line in lines if not line.startswith(("torch", "numpy"))], plan.warnings


@cases("line", "files", "expected")
def test_the_project_itself(tmp_path: Path, line: str, files: dict[str, str], expected: list[str]) -> None:
    lines, warnings = installed(tmp_path, f"torch\n{line}\n", **files)
    assert sorted(lines) == sorted(expected)
    assert warnings == ()


def test_its_python_counts(tmp_path: Path) -> None:
    files = {"requirements.txt": "-e .\n", "setup.py": SETUP, "train.py": ""}
    assert planned(tmp_path, files).image.base == "python:3.10-slim-bookworm"


def test_unknown_extra_gets_a_warning(tmp_path: Path) -> None:
    lines, warnings = installed(tmp_path, "-e .[nope]\n", **{"setup.py": SETUP})
    assert "six==1.16.0" in lines
    assert warnings == ("the project has no extra 'nope', only dev",)


@pytest.mark.parametrize("line", ["-e ./lib", "-e lib", "-e ..", "../", "-e .[a", "./.."])
def test_another_folder_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "lib").mkdir()
    with pytest.raises(ConfigError, match=r"requirements\.txt:1: ") as caught:
        installed(tmp_path, f"{line}\n")
    assert caught.value.run


def test_setup_cfg_alone_lists_the_packages(tmp_path: Path) -> None:
    made = planned(tmp_path, {"setup.cfg": SETUP_CFG, "train.py": "import torch\n"})
    assert made.chosen("packages") == ["torch, six; python_version > '3'"]


@pytest.mark.parametrize("text", ["no section\n", "[options]\ninstall_requires = a b c\n", "\x00"])
def test_an_odd_setup_cfg_is_one_sentence(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"setup\.cfg") as caught:
        installed(tmp_path, "-e .\n", **{"setup.cfg": text})
    assert caught.value.run


def plan(project: Path, source: str, requirements: str = "") -> ImagePlan:
    files = {"train.py": source, **({"requirements.txt": requirements} if requirements else {})}
    return planned(project, files).image


@pytest.mark.parametrize(
    ("source", "line", "release", "warns"),
    [
        ("import librosa\nlibrosa.output.write_wav(path, wav, sr)\n", "librosa", "0.9.1", True),
        ("import torch\nfrom librosa.output import write_wav\n", "librosa", "0.11.0", True),
        ("import librosa\nlibrosa.output.write_wav(path, wav, sr)\n", "librosa>=0.8", None, True),
        ("import librosa\nlibrosa.output.write_wav(path, wav, sr)\n", "librosa>=0.6", "0.7.2", False),
        ("import librosa\nlibrosa.output.write_wav(path, wav, sr)\n", "librosa==0.5.1", None, False),
        ("import librosa\nlibrosa.output.write_wav(path, wav, sr)\n", "librosa", None, False),
        ("import librosa\nlibrosa.load(path)\n", "librosa", "0.9.1", False),
        ("import scipy.misc\nscipy.misc.imsave(path, image)\n", "scipy", "1.4.1", True),
        ("import scipy.misc\nscipy.misc.imsave(path, image)\n", "scipy==1.1.0", None, False),
        ("from skimage import feature\nfeature.hog(image, visualise=True)\n", "scikit-image", "0.16.2", True),
        ("from skimage import feature\nfeature.hog(image, visualize=True)\n", "scikit-image", "0.16.2", False),
        ("import matplotlib.pyplot as plt\nplt.hist(x, normed=True)\n", "matplotlib", "3.2.2", True),
        ("import matplotlib.pyplot as plt\nplt.hist(x, normed=True)\n", "matplotlib", "3.1.3", False),
        ("import numpy as np\nnp.load(path, encoding='latin1').item()\n", "numpy", "1.17.3", True),
        ("import numpy as np\nnp.load(path).item()\n", "numpy==1.16.2", None, False),
        ("import numpy as np\nnp.load(path, allow_pickle=True).item()\n", "numpy", "1.17.3", False),
        ("import torch\ntorch.load(path).item()\n", "numpy", "1.17.3", False),
        ("import gym\nfrom gym.envs.classic_control import rendering\n", "gym", None, True),
    ],
)
def test_what_releases_before_the_wheels_of_a_python_had_is_named_where_the_plan_lacks_it(
    tmp_path: Path, source: str, line: str, release: str | None, warns: bool
) -> None:
    (tmp_path / "train.py").write_text(source)
    script = script_facts(Target(kind="script", value="train.py"), tmp_path)
    found = [*absent_data(script, Requirements((line,)), {line: release} if release else {})]
    assert [each.partition(" ")[0] for each in found] == ["train.py:2"] * warns


def test_gyms_window_brings_the_pyglet_that_has_its_names(tmp_path: Path) -> None:
    made = planned(tmp_path, {"train.py": "import numpy\nfrom gym.envs.classic_control import rendering\n"})
    assert "pyglet<2" in made.chosen("packages")[0]


@cases("source", "requirements", "printed", "run")
def test_code_and_versions(
    tmp_path: Path, source: str, requirements: str, printed: str | None, run: str | None
) -> None:
    if printed is None:
        plan(tmp_path, source, requirements)
        return
    with pytest.raises(ConfigError) as caught:
        plan(tmp_path, source, requirements)
    assert caught.value.message.startswith(printed) and run in (None, caught.value.run) and caught.value.run


def test_a_model_that_spacy_loads_is_named_with_the_wheel_of_spacys_release(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text('import spacy\nnlp = spacy.load("en_core_web_sm")\nspacy.load("model")\n')
    script = script_facts(Target(kind="script", value="train.py"), tmp_path)
    [warning] = absent_data(script, Requirements(("spacy",)), {"spacy": "3.7.4"})
    assert warning.startswith("train.py:2 loads en_core_web_sm") and "/en_core_web_sm-3.7.0-py3-none-any.whl" in warning
    assert not [*absent_data(script, Requirements(("spacy", "en-core-web-sm==3.7.1")), {"spacy": "3.7.4"})]
    [warning] = absent_data(script, Requirements(("spacy",)), {"spacy": "2.2.2"})
    assert "/en_core_web_sm-2.2.0.tar.gz" in warning  # there were no wheels


@pytest.mark.parametrize(
    ("source", "release", "data"),
    [
        ("from nltk import word_tokenize\n", "3.9.1", "punkt_tab"),
        ("from nltk.tokenize import sent_tokenize\n", "3.8.1", "punkt"),
        ("import nltk\nnltk.pos_tag(words)\n", "3.9.1", "averaged_perceptron_tagger_eng"),
        ("import nltk\nnltk.download(name)\nnltk.word_tokenize(text)\n", "3.9.1", ""),
        ("from nltk.translate.bleu_score import corpus_bleu\n", "3.9.1", ""),
    ],
)
def test_data_that_nltk_reads_is_named_unless_code_downloads_it(
    tmp_path: Path, source: str, release: str, data: str
) -> None:
    (tmp_path / "train.py").write_text(source)
    script = script_facts(Target(kind="script", value="train.py"), tmp_path)
    found = [each.rpartition("call ")[2] for each in absent_data(script, Requirements(("nltk",)), {"nltk": release})]
    assert found == [f"nltk.download(['{data}'])"] * bool(data)


@pytest.mark.parametrize(
    ("source", "brought"),
    [
        ("import albumentations.pytorch", "torchvision"),
        ("from detectron2.data import MetadataCatalog", "torchvision"),
        ("from detectron2.utils.visualizer import Visualizer", "opencv-python"),
        ("from segment_anything import SamPredictor", "torchvision"),
        ("from torchvision import datasets\nd = datasets.SVHN('data')", "scipy"),
        ("from torchmetrics.image.fid import FrechetInceptionDistance", "torch-fidelity"),
        ("import stable_baselines3 as sb3\nmodel = sb3.PPO('MlpPolicy', e, tensorboard_log='a')", "tensorboard"),
        ("from stable_baselines3 import PPO\nmodel = PPO()\nmodel.learn(1, progress_bar=True)", "rich tqdm"),
        ("import tensorflow as tf\ng = tf.keras.preprocessing.image.ImageDataGenerator()", "pillow scipy"),
        ("import torch\ntorch.onnx.export(model, x, 'a.onnx', dynamo=False)", "onnx"),
        ("import torch\nfrom torch.onnx import export\nexport(model, x, 'a.onnx')", "onnx"),
        ("import torch\nimport torch.onnx as to", ""),
        ("from torchvision import datasets\nd = datasets.CIFAR10('data')", ""),
    ],
)
def test_a_package_that_a_used_name_imports_is_installed_though_nothing_requires_it(
    tmp_path: Path, source: str, brought: str
) -> None:
    written = "".join(plan(tmp_path, source, "numpy\n").context_texts.values()).split()
    known = {"onnx", "opencv-python", "pillow", "rich", "scipy", "tensorboard", "torch-fidelity", "tqdm"}
    assert known & {*written} == known & {*brought.split()}
    assert "torchvision" in written or brought != "torchvision"


@pytest.mark.parametrize(
    ("source", "listed", "held"),
    [
        ("from transformers.optimization import AdamW", "", "transformers<4.47"),
        (
            "from transformers import TFBertModel\nfrom transformers.modeling_bert import BertModel",
            "",
            "transformers<4",
        ),
        ("import datasets, torch\ndatasets.load_metric('bleu')", "datasets>=1.18\n", "datasets<3"),
        ("import pandas as pd\npd.read_csv('a.csv', squeeze=True)", "", "pandas<2"),
        ("import pandas as pd\nif old: pd.read_csv('a.csv', squeeze=True)", "", None),
        ("import jax\njax.tree_map(len, {})", "", "jax<0.6"),
        ("import jax.numpy as jnp\njnp.round_(2.5)", "", "jax<0.4.31"),
        ("import jax.numpy as jnp\nif old: jnp.round_(2.5)", "", None),
        ("import jax.numpy as jnp\njnp.trapz([])", "", None),
        ("import jax\nclass Tree:\n    at: jax.tree_map", "", "jax<0.6"),
        ("from __future__ import annotations\nimport jax\nclass Tree:\n    at: jax.tree_map", "", None),
        ("import datasets, torch\nif old: datasets.load_metric('bleu')", "datasets>=1.18\n", None),
        ("from transformers import AdamW", "transformers==4.30.0\n", None),
        ("from transformers import AdamW", "transformers~=4.36\n", "transformers<4.47"),
        ("import transformers\ntransformers.TrainingArguments(evaluation_strategy='no')", "", "transformers<4.51"),
        ("from transformers import AdamW", "git+https://e.org/h/transformers.git@v4.30\n", None),
        ("try:\n    from transformers import AdamW\nexcept ImportError:\n    from torch.optim import AdamW", "", None),
    ],
)
def test_a_package_that_is_left_open_still_has_the_names_that_the_code_imports(
    tmp_path: Path, source: str, listed: str, held: str | None
) -> None:
    texts = plan(tmp_path, f"{source}\nimport transformers\n", listed).context_texts
    written = "".join(texts.values())
    assert (f"{held}\n" in written) if held else "<" not in written


@pytest.mark.parametrize(
    ("listed", "chosen"),
    [
        ("torch==2.0.1\ntransformers>=4.30\n", "transformers[torch]>=4.30"),
        ("torch<2.5\ntransformers\n", "transformers[torch]"),
        ("torch>=2\ntransformers\n", "transformers"),
        ("torch==2.0.1\ntransformers==4.30.0\n", "transformers==4.30.0"),
    ],
)
def test_transformers_fits_the_torch_of_the_list(tmp_path: Path, listed: str, chosen: str) -> None:
    made = planned(tmp_path, {"train.py": "import torch, transformers\n", "requirements.txt": listed})
    assert chosen in made.chosen("packages")[0].split(", ")


def test_torch_is_as_old_as_the_code_for_torchaudio(tmp_path: Path) -> None:
    image = plan(tmp_path, "import torchaudio\ntorchaudio.set_audio_backend('sox_io')\n", "torch\ntorchaudio\n")
    assert "torch==2.8.0\n" in image.context_texts["framework/requirements.txt"]


@pytest.mark.parametrize(
    ("source", "requirements", "torch"),
    [
        ("from torch._six import inf", "torch>=1.7\n", "torch==1.12.1"),
        ("import torch", "basicsr>=1.4.2\ntorch\n", "torch==2.1.2"),
        ("import timm, torch\nassert timm.__version__ == '0.3.2'", "", "torch==1.8.1"),
        ("import torch, tensorflow", "torch\ntensorflow==2.4.0\n", "torch==2.4.1"),
        ("from torchtext.data import Field", "torch\ntorchtext\n", "torch==1.7.1"),
        ("from keras import backend as K\ny = K.mean([1.0])", "", "tensorflow-cpu==2.15.1"),
        ("from tensorflow import keras\nopt = keras.optimizers.Adam(lr=1e-4)", "", "tensorflow-cpu==2.15.1"),
        ("import tensorflow as tf\ntf.keras.Model().fit_generator([])", "", "tensorflow-cpu==2.15.1"),
        ("from tensorflow.keras import backend as K\ny = K.mean([1.0])", "", "tensorflow-cpu==2.21.0"),
        ("import tensorflow as tf\ntf.keras.Model().save_weights('w.weights.h5')", "", "tensorflow-cpu==2.21.0"),
        ("import tensorflow\nopt = Adam([], lr=0.1)", "", "tensorflow-cpu==2.21.0"),
        ("from keras.layers.advanced_activations import LeakyReLU", "", "tensorflow-cpu==2.8.4"),
        ("from keras.engine.topology import Layer", "", "tensorflow-cpu==2.12.1"),
        ("import tensorflow, tensorflow_addons", "", "tensorflow-cpu==2.15.1"),
        ("from keras.preprocessing.text import Tokenizer", "keras\n", "tensorflow-cpu==2.15.1"),
    ],
)
def test_a_framework_that_is_left_open_is_as_old_as_the_code(
    tmp_path: Path, source: str, requirements: str, torch: str
) -> None:
    image = plan(tmp_path, source, requirements)
    assert f"{torch}\n" in image.context_texts["framework/requirements.txt"]


@pytest.mark.parametrize(
    ("source", "build"),
    [
        ("import torch", "cpu"),
        ("import torch\nif torch.x:\n    import tensorflow", "and-cuda"),
        ("import torch, keras", "and-cuda"),
        ("import yaml", "and-cuda"),
    ],
)
def test_a_listed_framework_that_the_code_does_not_import_has_no_cuda(tmp_path: Path, source: str, build: str) -> None:
    listed = {"requirements.txt": "torch\ntensorflow==2.16.1\n", "train.py": source}
    made = planned(tmp_path, listed, cpu_only=False, machine=parse_target("h100"))
    assert made.chosen("tensorflow build") == [build]


@pytest.mark.parametrize(("moves", "run"), [("", "seatrial plan … --gpus none"), (".cuda()", "torch==2.2.1")])
def test_a_cpu_build_leaves_the_gpu_where_nothing_moves_to_it(tmp_path: Path, moves: str, run: str) -> None:
    source = f"import torch\nnet = torch.nn.Linear(1, 1){moves}\nnet(torch.ones(1){moves}).backward()\n"
    files = {"requirements.txt": "torch==2.2.1+cpu\n", "train.py": source}
    with pytest.raises(GpuContractError, match=r"torch 2\.2\.1\+cpu has no CUDA") as refused:
        planned(tmp_path, files, cpu_only=False, machine=parse_target("h100"))
    assert (refused.value.run or "").endswith(run)


@pytest.mark.parametrize(
    ("source", "listed", "warning"),
    [
        (
            "from keras.optimizers import SGD\nSGD(lr=0.1)",
            "tensorflow==2.16.1",
            "2 SGD(lr=…), which tensorflow 2.16",
        ),
        ("from keras.optimizers import SGD\nSGD(0.1, decay=0)", "tensorflow==2.15.1", "SGD(decay=…) fails with"),
        (
            "from keras.optimizers import SGD\nSGD(lr=0.1)",
            "tensorflow==2.15.1",
            "SGD(lr=…) trains with the default learning rate",
        ),
        ("from keras.optimizers import SGD\nSGD(lr=0.1)", "tensorflow==2.10.1", ""),
        ("from tensorflow.keras.optimizers.legacy import SGD\nSGD(lr=0.1)", "tensorflow==2.15.1", ""),
        ("import tensorflow.compat.v1 as tf\ntf.keras.optimizers.SGD(lr=0.1)", "tensorflow==2.15.1", ""),
        ("import tensorflow as tf\ntf.compat.v1.keras.optimizers.SGD(lr=0.1)", "tensorflow==2.15.1", ""),
        (
            "import tensorflow as tf\ntf.compat.v1.disable_v2_behavior()\ntf.keras.optimizers.SGD(lr=0.1)",
            "tensorflow==2.15.1",
            "SGD(lr=…) trains with the default learning rate",
        ),
        ("from keras.optimizers import SGD\nSGD(0.1, decay=0)", "tensorflow==2.16.1", ""),
        ("import keras\nkeras.Model().save_weights(d + f'{e}.h5')", "tensorflow==2.17.1", "save_weights('.h5'), which"),
        ("import keras\nkeras.Model().save_weights(path)", "tensorflow==2.17.1", ""),
        (
            "from keras.callbacks import *\nModelCheckpoint('w.{epoch}.hdf5')",
            "tensorflow==2.17.1",
            "Checkpoint('w.{epoch",
        ),
        ("from keras.callbacks import *\nModelCheckpoint('w.h5')", "tensorflow==2.17.1", ""),
        (
            "import tensorflow as tf\ntf.keras.mixed_precision.experimental.Policy('mixed_float16')",
            "tensorflow==2.12.0",
            "train.py:2 tf.keras.mixed_precision.experimental, which tensorflow 2.9 removed",
        ),
        ("import tensorflow as tf\ntf.keras.mixed_precision.Policy('mixed_float16')", "tensorflow==2.12.0", ""),
        ("import keras, os\nos.system('nvcc -std=c++11 x')", "tensorflow==2.17.1", "2.17.1, which need C++17: write"),
        ("import keras, os\nos.system('nvcc -std=c++17 x')", "tensorflow==2.17.1", ""),
        ("import keras, os\nos.system('nvcc -std=c++11 x')", "tensorflow==2.10.1", ""),
    ],
)
def test_a_call_of_an_older_keras_is_warned_of_where_the_release_is_pinned(
    tmp_path: Path, source: str, listed: str, warning: str
) -> None:
    warnings = " ".join(plan(tmp_path, source, f"{listed}\nkeras\n").warnings)
    assert warning in warnings and ("train.py" in warnings) is bool(warning)


@cases("source", "listed", "way_out", "pinned")
def test_the_pin_that_is_named_is_a_way_out(
    tmp_path: Path, source: str, listed: str, way_out: str, pinned: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(tmp_path, source, listed)
    assert caught.value.run is not None and caught.value.run.endswith(f", or pin {way_out}")
    plan(tmp_path, source, pinned)


@cases("line", "fix")
def test_what_is_missing_all_the_same_has_a_finding(line: str, fix: str) -> None:
    [finding] = match_text(line)
    assert finding.fix == f"in seatrial.toml: [image] system_packages = {fix}"


@pytest.mark.parametrize(("release", "needed"), [("4.2.0.34", True), ("4.3.0.38", False)])
def test_opencv_with_qt_4_gets_the_libraries_of_x(release: str, needed: bool) -> None:
    found = system_packages(["opencv-python"], [f"opencv-python=={release}"])["opencv-python"]
    assert found == ("libgl1", "libglib2.0-0", *("libsm6", "libxext6", "libxrender1") * needed)


def test_a_release_for_the_base_s_c_library_gets_no_warning(tmp_path: Path) -> None:
    bullseye = {"base": "python:3.8-slim-bullseye"}
    for line, image in (("paddlepaddle==2.4.0\n", {}), ("paddlepaddle==2.0.0\n", bullseye)):
        made = planned(tmp_path, {"requirements.txt": line}, ScriptFacts(), **image)
        assert "glibc" not in "".join(made.image.warnings)


def test_the_build_of_mmcv_that_has_the_imported_operations_is_kept(tmp_path: Path) -> None:
    files = {"requirements.txt": "torch\nmmcv_full==1.7.2\nmmcv==1.3.14\n", "train.py": "import torch, mmcv\n"}
    assert planned(tmp_path, files).chosen("packages")[0].endswith("mmcv==1.3.14")
    files["train.py"] = "import torch\nfrom mmcv.ops import nms\n"
    made = planned(tmp_path, files)
    assert made.chosen("packages")[0].endswith("mmcv_full==1.7.2") and "no mmcv: " in made.reason("packages")


@pytest.mark.parametrize(("module", "added"), [("google.cloud", False), ("google.protobuf", True)])
def test_a_package_below_google_is_no_protobuf(tmp_path: Path, module: str, added: bool) -> None:
    files = {"requirements.txt": "torch\ngoogle-cloud-storage\n", "train.py": f"import torch\nimport {module}.text\n"}
    assert ("protobuf" in planned(tmp_path, files).chosen("packages")[0]) is added


def test_a_missing_file_is_no_missing_program() -> None:
    assert match_text("FileNotFoundError: [Errno 2] No such file or directory: 'git/data.csv'") == []


@pytest.mark.parametrize(
    ("lines", "image", "reported", "installed", "warns"),
    [
        ("opencv-python-headless\nsix\n", {}, [], "", ""),
        ("Opencv-Python>=4.1\nlightgbm\n", {}, ["libgl1, libglib2.0-0, libgomp1"], "libgl1 libglib2.0-0 libgomp1", ""),
        ("opencv-python\n", {"base": "rockylinux:9"}, [], "", 'system_packages = ["libgl1", "libglib2.0-0"]'),
        ("lightgbm\n", {"system_packages": ("libgomp1",)}, [], "libgomp1", ""),
        ("fiona\nrasterio>=1.5\n", {}, ["libexpat1"], "libexpat1", ""),
        ("pyrender\n", {}, ["libegl1, libgl1, libglu1-mesa"], "libegl1 libgl1 libglu1-mesa", ""),
        ("paddlepaddle==2.0.0\n", {}, ["libgomp1"], "libgomp1", "paddlepaddle before 2.4 needs a glibc before 2.34"),
    ],
    ids=[
        "none",
        "installed and named",
        "a base that may be no Debian",
        "what the user lists is not named again",
        "once",
        "of what it loads at import",
        "an older C library",
    ],
)
def test_packages_of_a_plan(
    tmp_path: Path, lines: str, image: dict[str, Any], reported: list[str], installed: str, warns: str
) -> None:
    made = planned(tmp_path, {"requirements.txt": lines}, ScriptFacts(), **image)
    dockerfile = str(made.image.dockerfile)
    assert made.chosen("system packages") == reported and ("apt-get" in dockerfile) is bool(installed)
    assert f"--no-install-recommends {installed}" in (dockerfile + "--no-install-recommends ")
    assert warns in "".join(made.image.warnings)


@pytest.mark.parametrize(
    ("source", "image", "warns"),
    [
        ("subprocess.call(f'sbatch {job}'.split(' '))", {}, "train.py:2 starts sbatch, which works on its cluster"),
        ("subprocess.run(['srun', 'hostname'], check=True)", {}, "train.py:2 starts srun"),
        ("subprocess.run(['srun', 'hostname'])", {"base": "mine/with-slurm:1"}, ""),
        ("if False: subprocess.run(['sbatch', 'job.sh'])", {}, ""),
        ("subprocess.run(['git', 'log'])", {}, ""),
    ],
)
def test_a_program_of_a_cluster_that_the_code_starts_is_named(
    tmp_path: Path, source: str, image: dict[str, Any], warns: str
) -> None:
    files = {"requirements.txt": "six\n", "train.py": f"import subprocess\n{source}\n"}
    warnings = "".join(planned(tmp_path, files, **image).image.warnings)
    assert warns in warnings and ("starts s" in warnings) is bool(warns)


EXPLICIT = (
    "# platform: osx-64\n@EXPLICIT\nhttps://repo.anaconda.com/pkgs/main/osx-64/blas-1.0-mkl.conda\n"
    "https://conda.anaconda.org/conda-forge/noarch/tqdm-4.50.2-py_0.tar.bz2#abc123\n"
    "https://repo.anaconda.com/pkgs/main/osx-64/python-3.8.5-h26836e1_1.conda\n"
)


def test_the_addresses_of_a_conda_list_are_names_and_versions(tmp_path: Path) -> None:
    made = planned(tmp_path, {"requirements.txt": EXPLICIT, "train.py": "import tqdm\n"})
    assert made.chosen("packages") == ["tqdm==4.50.2"] and made.chosen("python") == ["3.8"]


def test_a_conda_list_with_addresses_in_one_line_is_read_at_once(tmp_path: Path) -> None:
    started = time.process_time()
    planned(tmp_path, {"requirements.txt": "http://" * 20_000, "train.py": ""})
    assert time.process_time() - started < 2


def test_markers_of_a_list_are_a_containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mac = {**default_environment(), "sys_platform": "darwin", "platform_system": "Darwin"}
    monkeypatch.setattr("packaging.markers.default_environment", lambda: mac)
    files = {"requirements.txt": "torch==2.4.1; sys_platform == 'linux'\n", "train.py": "import torch\n"}
    made = planned(tmp_path, {**files, ".python-version": "3.11\n"}, base="python:3.11-slim-bookworm")
    assert made.image.stack["torch"] == "2.4.1"


def test_stubs_are_not_the_package_and_environments_in_comments_are_not_made(tmp_path: Path) -> None:
    source = "import gymnasium, requests\n# or 'LunarLander-v3'\ngymnasium.make('CartPole-v1')\n"
    made = planned(tmp_path, {"requirements.txt": "gymnasium\ntypes-requests\n", "train.py": source})
    assert made.chosen("packages") == ["gymnasium, types-requests, requests"]


@pytest.mark.parametrize(
    ("listed", "source", "why"),
    [
        ("gymnasium", "import gymnasium\ngymnasium.make('LunarLander-v3')", "box2d, pygame for environments that the"),
        ("lightning", "import lightning\nclass A:\n  def test_epoch_end(self): ...", "lightning<2, as train.py:3 A.te"),
        ("numpy", "import numpy as np\nnp.int(1)", "numpy<1.24, because later releases lack train.py:2 np.int"),
    ],
)
def test_what_the_code_adds_to_a_list_has_a_reason(tmp_path: Path, listed: str, source: str, why: str) -> None:
    assert why in planned(tmp_path, {"requirements.txt": listed, "train.py": source}).reason("packages")


ROMS = "require autorom[accept-rom-license]"
ALL = f"{ROMS}, gym==0.25.2 and ale-py==0.7.5"


@pytest.mark.parametrize(
    ("listed", "source", "packages", "warned"),
    [
        ("gym==0.17.3", "gym.make('PongNoFrameskip-v4')", "atari-py==0.2.9;python_version<'3.10', ale-py<0.9", ALL),
        ("gym==0.17.3\natari-py==0.2.5", "gym.make('PongNoFrameskip-v4')", "atari-py==0.2.5", ALL),
        ("gym==0.26.2", "gym.make('ALE/Pong-v5')", "ale-py<0.9", ROMS),
        ("gym==0.26.2\nautorom", "gym.make('ALE/Pong-v5')", "ale-py<0.9", None),
        ("gymnasium==0.29.1", "gymnasium.make('ALE/Pong-v5')", "shimmy[atari]", ROMS),
        ("gymnasium==0.29.1\nshimmy==1.1.0", "gymnasium.make('ALE/Pong-v5')", "shimmy[atari]", ROMS),
        ("gymnasium==1.0.0", "gymnasium.make('ALE/Pong-v5')", "ale-py", None),
    ],
)
def test_each_gym_gets_its_atari_package_and_a_warning_about_missing_roms(
    tmp_path: Path, listed: str, source: str, packages: str, warned: str | None
) -> None:
    module = source.partition(".")[0]
    made = planned(tmp_path, {"requirements.txt": listed, "train.py": f"import {module}\n{source}\n"})
    assert packages in made.chosen("packages")[0]
    assert [each.rpartition("ROMs: ")[2] for each in made.image.warnings] == [warned] * (warned is not None)


@pytest.mark.parametrize("module", ["mujoco_py", "d4rl"])
def test_an_import_of_mujoco_py_names_what_the_image_lacks(tmp_path: Path, module: str) -> None:
    made = planned(tmp_path, {"requirements.txt": f"{module}\n", "train.py": f"import {module}\n"})
    assert f"train.py:1 imports {module}, which needs a compiler and ~/.mujoco" in str(made.image.warnings)
    assert "libosmesa6-dev, libgl1-mesa-dev and ~/.mujoco/mujoco210: --image IMAGE" in str(made.image.warnings)


@pytest.mark.parametrize(
    ("listed", "edited"),
    [
        ("tensorflow-cpu", "tensorflow-cpu → tensorflow"),
        ("tensorflow-cpu==2.3.0", "tensorflow-cpu==2.3.0 → tensorflow==2.12.0"),
        ("tensorflow-cpu==2.12.0\ntensorflow==2.12.0", "tensorflow-cpu==2.12.0 → tensorflow==2.12.0"),
    ],
)
def test_tensorflow_cpu_is_replaced_on_its_own_line(tmp_path: Path, listed: str, edited: str) -> None:
    files = {"requirements.txt": f"tqdm\n{listed}\n", "train.py": "import tensorflow\n"}
    with pytest.raises(GpuContractError) as refused:
        planned(tmp_path, files, cpu_only=False, target="h100")
    assert refused.value.run == f"requirements.txt:2  {edited}"


def test_each_line_of_a_package_is_edited_and_that_of_another_file_is_not(tmp_path: Path) -> None:
    listed = "tensorflow==2.3.0\ntensorflow-gpu==2.3.0\n"
    setup = "from setuptools import setup\nsetup(install_requires=['tensorflow==2.3.0'])\n"
    files = {"requirements.txt": listed, "setup.py": setup, "train.py": "import tensorflow\n"}
    with pytest.raises(GpuContractError) as refused:
        planned(tmp_path, files, cpu_only=False, target="h100")
    row = "requirements.txt:{}  tensorflow{}==2.3.0 → tensorflow==2.12.0"
    assert (refused.value.run or "").split("\n    ") == [row.format(1, ""), row.format(2, "-gpu")]


def test_a_line_for_each_python_lets_the_gpu_choose_the_python(tmp_path: Path) -> None:
    listed = "torch==1.13.1; python_version < '3.11'\ntorch>=2.1; python_version >= '3.12'\n"
    files = {"requirements.txt": listed, "train.py": "import torch\n"}
    project = '[project]\nname = "a"\nrequires-python = ">=3.10,!=3.11.*,<3.13"\n'
    made = planned(tmp_path, {**files, "pyproject.toml": project}, cpu_only=False, target="h100")
    assert made.chosen("python") == ["3.12"] and made.image.stack["torch"].startswith("2.")


def test_the_python_of_a_conda_list_that_no_plan_has_is_ignored(tmp_path: Path) -> None:
    files = {"environment.yml": "dependencies:\n- python=3.6\n- tqdm\n", "train.py": "import tqdm\n"}
    made = planned(tmp_path, files)
    assert "environment.yml requires Python ==3.6.*, which seatrial does not support: not used" in made.image.warnings


@pytest.mark.parametrize(
    ("source", "package"),
    [
        ("import xarray as xr\nxr.open_mfdataset('a.nc')\n", "netCDF4"),
        ("import pandas as pd\npd.read_excel('a.xlsx')\n", "openpyxl"),
        ("import pandas\npandas.read_parquet('a')\n", "pyarrow"),
    ],
)
def test_a_call_brings_the_package_that_it_loads(tmp_path: Path, source: str, package: str) -> None:
    assert package in planned(tmp_path, {"train.py": source}).image.context_texts["packages/requirements.txt"].split()
    without = source.partition("\n")[0]
    assert package not in planned(tmp_path, {"train.py": without}).image.context_texts["packages/requirements.txt"]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("tf.data.Dataset.range(3)", ["jax[cuda13]==0.11.2", "tensorflow-cpu==2.21.0"]),
        ("tf.keras.Sequential()", ["tensorflow[and-cuda]==2.21.0", "jax[cuda12]==0.10.2"]),
    ],
)
def test_tensorflow_next_to_jax_gets_its_cpu_build_unless_it_computes(
    tmp_path: Path, line: str, found: list[str]
) -> None:
    files = {"train.py": f"import jax\nimport tensorflow as tf\n{line}\n"}
    stack = planned(tmp_path, files, cpu_only=False, machine=parse_target("h100"))
    assert [each.value for each in stack.choices if each.what in ("jax", "tensorflow")] == found


@pytest.mark.parametrize(
    ("code", "asked", "python", "warned"),
    [
        ("import binhex", "", "3.10", []),
        ("import imp", "3.12", "3.12", ["train.py:1 imports imp, which Python 3.12 removed; the plan has"]),
        ("parser = Parser()\nparser.add('--lr', help='rate')", "", "3.11", []),
        ("import xdrlib", "3.12", "3.12", []),
        ("from collections import Mapping", "", "3.9", []),
        ("import collections.abc\ncollections.abc.Mapping", "", "3.11", []),
        ("import inspect as i\ni.getargspec(print)", "", "3.10", []),
        (
            "import time\ntime.clock()",
            "",
            "3.11",
            ["train.py:2 time.clock, which Python 3.8 removed; the plan has"],
        ),
        ("import time\ntry:\n    time.clock()\nexcept AttributeError:\n    pass", "", "3.11", []),
        ("import sys\nif sys.version_info[0] < 3:\n    print(sys.maxint)", "", "3.11", []),
        ("string = object()\nstring.letters", "", "3.11", []),
        ("parser = object()\nparser.add(a=1)\nfor chunk in ():\n    chunk(dim=1)", "", "3.11", []),
        ("import collections\ncollections.Mapping = dict\ncollections.Mapping()", "", "3.11", []),
        ("import collections\nsetattr(collections, 'Mapping', dict)\ncollections.Mapping()", "", "3.11", []),
        ("import symbol\nsymbol.more(a=1)", "", "3.11", []),
    ],
)
def test_a_name_that_python_removed_takes_an_older_one(
    tmp_path: Path, code: str, asked: str, python: str, warned: list[str]
) -> None:
    code += "\ntry:\n    import asyncore\nexcept ImportError:\n    asyncore = None\n"
    made = planned(tmp_path, {"train.py": code, ".python-version": asked, "symbol.py": "def more(a): ..."})
    assert made.image.stack["python"] == python
    assert [each.partition(" has")[0] + " has" for each in made.image.warnings if "removed" in each] == warned


@pytest.mark.parametrize(("python", "added"), [("3.12", "setuptools"), ("3.11", "")])
def test_setuptools_brings_the_distutils_that_python_removed(tmp_path: Path, python: str, added: str) -> None:
    code = "import numpy\nfrom distutils.util import strtobool\n"
    made = planned(tmp_path, {"train.py": code, ".python-version": python})
    assert made.chosen("packages") == [", ".join(filter(None, ("numpy", added)))]
