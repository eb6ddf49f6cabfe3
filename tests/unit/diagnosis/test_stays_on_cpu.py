# ruff: noqa: E501  sources in one line
"""Why a script stays on the CPU: the line is named, and scripts that do come to the GPU are not accused."""

import pytest

from seatrial.diagnosis.cpu_only import reason_by_torch, reasons
from seatrial.job.model import Target

NET = "import torch\nnet = torch.nn.Linear(3, 3)\n"
CASES = {
    "a variable": ('import os\nos.environ["CUDA_VISIBLE_DEVICES"] = "-1"\n' + NET, "train.py:2 sets CUDA_VISIBLE_DEVICES"),
    "by setdefault": ('import os\nos.environ.setdefault("CUDA_VISIBLE_DEVICES", "")\n' + NET, "train.py:2 sets"),
    "by update": ('import os\nos.environ.update({"CUDA_VISIBLE_DEVICES": ""})\n' + NET, "train.py:2 sets"),
    "by update with keywords": ('import os\nos.environ.update(CUDA_VISIBLE_DEVICES="")\n' + NET, "train.py:2 sets"),
    "another GPU than the first": ('import os\nos.environ["CUDA_VISIBLE_DEVICES"] = "3"\n' + NET, "'3'"),
    "a flag": (NET + 'p.add_argument("--device", "-d", default="cpu")\nnet.to(args.device)', "unless it is given (train.py:3)"),
    "a switch": (NET + 'p.add_argument("--use-cuda", action="store_true")\nnet.to(d)', "--use-cuda is off"),
    "click": (NET + '@click.option("--device", default="cpu")\ndef main(device):\n    net.to(device)', "--device is"),
    "a constant": (NET + 'DEVICE = "cpu"\nnet.to(DEVICE)', "train.py:3 sets DEVICE to the CPU"),
    "a device": (NET + 'device = torch.device("cpu")\nnet.to(device)', "train.py:3 sets device"),
    "an attribute": (NET + 'class C:\n    device: str = "cpu"\nnet.to(C.device)', "train.py:4"),
    "a default argument": (NET + 'def train(net, device="cpu"):\n    net.to(device)', 'train(device="cpu")'),
    "a caught error": (
        NET + 'try:\n    net.cuda()\nexcept RuntimeError:\n    device = "cpu"\n', "train.py:6 goes on with the CPU"),
    "Lightning": ('import lightning\nlightning.Trainer(accelerator="cpu")', "train.py:2 takes the CPU"),
    "the stock Trainer": ('from transformers import TrainingArguments\nTrainingArguments(use_cpu=True)', "use_cpu=True"),
    "nothing moves": (NET + "net(torch.zeros(3))", "nothing in train.py moves"),
    "no library": ("import numpy as np\nnp.zeros(3)", "imports no library that uses a GPU (numpy)"),
    "JAX": ('import os\nos.environ["JAX_PLATFORMS"] = "cpu"\nimport jax\n', "JAX_PLATFORMS"),
    "JAX's own setting": ('import jax\njax.config.update("jax_platforms", "cpu")', "train.py:2 keeps JAX on the CPU"),
    "JAX with nothing of the kind": ("import jax\njax.jit(f)(x)", "jax, which takes a GPU by itself"),
    "TensorFlow": ("import tensorflow as tf\ntf.constant(1)", "tensorflow, which takes a GPU by itself"),
}  # fmt: skip

INNOCENT = {
    "asks torch": NET + 'device = "cuda" if torch.cuda.is_available() else "cpu"\nnet.to(device)',
    "takes the first GPU": 'import os\nos.environ["CUDA_VISIBLE_DEVICES"] = "0"\n' + NET + "net.cuda()",
    "loads to the CPU first": NET + 'net.load_state_dict(torch.load("x", map_location="cpu"))\nnet.to("cuda")',
    "brings results back": NET + 'net.to("cuda")\nout = net(x).to("cpu")',
    "a trainer that moves": "from transformers import Trainer\nTrainer(model).train()",
    "broken": "def (",
}


def read(tmp_path, source, *args):
    (tmp_path / "train.py").write_text(source)
    return [reason.words for reason in reasons(Target(kind="script", value="train.py", args=args), tmp_path)]


@pytest.mark.parametrize("name", CASES)
def test_the_line_is_named(tmp_path, name):
    source, words = CASES[name]
    found = read(tmp_path, source)
    assert found and words in found[0], found


@pytest.mark.parametrize("name", INNOCENT)
def test_nobody_is_accused(tmp_path, name):
    assert read(tmp_path, INNOCENT[name]) == []


def test_a_flag_that_was_given_decides(tmp_path):
    source = CASES["a flag"][0]
    assert read(tmp_path, source, "--device", "cuda") == []
    assert read(tmp_path, source, "--device=cpu") == ["--device cpu was given"]
    assert read(tmp_path, NET + 'p.add_argument("--no-cuda", action="store_true")\nnet.cuda()', "--no-cuda")


def test_a_line_in_a_module_of_the_project(tmp_path):
    (tmp_path / "config.py").write_text('DEVICE = "cpu"\n')
    assert "config.py:1 sets DEVICE" in read(tmp_path, "from config import DEVICE\n" + NET + "net.to(DEVICE)")[0]


def test_cpu_build_is_reported_by_torch():
    assert "torch 2.11.0+cpu is a CPU build" in reason_by_torch({"version": "2.11.0+cpu", "cuda_build": None}).words
    assert reason_by_torch({"version": "2.11.0", "cuda_build": "13.0"}) is None and reason_by_torch({}) is None
