from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.errors import TargetError
from seatrial.job.model import Job, Target
from seatrial.job.script import ScriptFacts, script_facts, source_facts


def facts(project: Path, source: str, **others: str) -> ScriptFacts:
    (project / "train.py").write_text(source)
    for name, text in others.items():
        path = project / (name.replace("__", "/") + ".py")
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    return script_facts(Target(kind="script", value="train.py"), project)


def test_imports_leave_out_the_standard_library_and_the_project(tmp_path: Path) -> None:
    found = facts(
        tmp_path, "import os, torch.nn as nn\nfrom model import Net\nimport seatrial\n", model="import numpy\n"
    )
    assert found.imports == ("numpy", "torch")
    assert found.files == ("train.py", "model.py")
    assert found.framework == "torch"


@pytest.mark.parametrize(
    ("source", "framework"),
    [
        ("import tensorflow as tf", "tensorflow"),
        ("from jax import numpy", "jax"),
        ("import torchvision", "torch"),
        ("import transformers, tensorflow", "tensorflow"),
        ("import jax, flax, tensorflow as tf, tensorflow_datasets", "jax"),  # which read data through TensorFlow
        ("import torch, tensorflow", "torch"),
        ("import pandas", None),
    ],
)
def test_framework(tmp_path: Path, source: str, framework: str | None) -> None:
    assert facts(tmp_path, source).framework == framework


def test_a_framework_behind_try_may_not_be_there(tmp_path: Path) -> None:
    maybe = facts(tmp_path, "try:\n    import tensorflow as tf\nexcept ImportError:\n    tf = None\n")
    assert maybe.framework == "tensorflow" and not maybe.needs_framework
    assert facts(tmp_path, "import optax").needs_framework and facts(tmp_path, "import tensorflow").needs_framework


@pytest.mark.parametrize(
    ("source", "torchrun", "one_process"),
    [
        ("import torch.distributed as dist\ndist.init_process_group('nccl')", "train.py:2 init_process_group", None),
        ("import os\nrank = int(os.environ['LOCAL_RANK'])", "train.py:2 LOCAL_RANK", None),
        ("from accelerate import Accelerator\naccelerator = Accelerator()", "train.py:2 Accelerator", None),
        ("model = FSDP(model)", "train.py:1 FSDP", None),
        ("from transformers import AutoModel, Trainer\nTrainer(m)", "train.py:1 transformers.Trainer", None),
        ("import transformers\nclass Mine(transformers.Trainer): pass", "train.py:2 transformers.Trainer", None),
        ("from trl import SFTTrainer", "train.py:1 trl.SFTTrainer", None),
        ("from lightning import Trainer\nTrainer(devices=2)", None, None),
        ("from torch.nn.parallel import DistributedDataParallel as Wrap", "train.py:1 DistributedDataParallel", None),
        ("from timm import utils\nd = utils.init_distributed_device(a)", "train.py:2 init_distributed_device", None),
        ("model = nn.DataParallel(model)", None, "train.py:1 DataParallel"),
        ("model = load('x', device_map='auto')", None, "train.py:1 device_map"),
        ("model = load('x', device_map=None)", None, None),
        ("model = load('x', device_map=args.map)", None, "train.py:1 device_map"),
        ("from transformers import Trainer\nload('x', device_map=where)", "train.py:1 transformers.Trainer", None),
        ("model = load('x', device_map={'': args.device})", None, None),
        ("model = load('x', device_map='cuda:0')", None, None),
        # Starts its own ranks: under torchrun each would start a world of them.
        ("mp.spawn(main, nprocs=2)\ndist.init_process_group('nccl')", None, "train.py:1 mp.spawn"),
        ("mp.spawn(loader)", None, None),
        ("with idist.Parallel(backend=a.backend) as p: p.run(main)", "train.py:1 idist.Parallel", None),
        ("from ignite.distributed import Parallel", "train.py:1 ignite.distributed.Parallel", None),
        ("idist.initialize('nccl')", "train.py:1 idist.initialize", None),
        ("idist.Parallel(backend='nccl', nproc_per_node=2)", None, "train.py:1 idist.Parallel"),
        ("idist.Parallel(backend='nccl', nproc_per_node=None)", "train.py:1 idist.Parallel", None),
        ("idist.spawn('gloo', main, nproc_per_node=2)", None, "train.py:1 idist.spawn"),
        ("idist.Parallel(backend=None)", None, None),
        ("from joblib import Parallel\nParallel(n_jobs=2)", None, None),
        # Falls back to DataParallel, and reads what torchrun sets.
        ("if 'LOCAL_RANK' in os.environ: pass\nelse: m = nn.DataParallel(m)", "train.py:1 LOCAL_RANK", None),
        ("print('hello')", None, None),
        ("# init_process_group()\nx = 'DataParallel'", None, None),
    ],
)
def test_launcher_evidence(tmp_path: Path, source: str, torchrun: str | None, one_process: str | None) -> None:
    found = facts(tmp_path, source)
    assert (found.torchrun_evidence, found.one_process_evidence) == (torchrun, one_process)
    assert found.multi_gpu_evidence == (torchrun or one_process)


@pytest.mark.parametrize(
    ("source", "option"),
    [
        ("p.add_argument('--local_rank', type=int, default=-1)", "--local_rank"),
        ("@click.option('--local-rank', default=0)\ndef main(local_rank): pass", "--local-rank"),
        ("def parsed():\n    p.add_argument('-l', '--local_rank')\nparsed()", "--local_rank"),
        ("p.add_argument('--lr', help='--local_rank')", None),
        ("q = p.add_subparsers().add_parser('train')\nq.add_argument('--local_rank')", None),
        ("if __name__ == '__main__':\n    import net", None),
    ],
)
def test_the_option_of_a_rank(tmp_path: Path, source: str, option: str | None) -> None:
    """``net``'s own command line is not that of a script that imports it."""
    own = "import argparse\nif __name__ == '__main__':\n    argparse.ArgumentParser().add_argument('--local_rank')\n"
    found = facts(tmp_path, source, net=own)
    assert found.rank_option == option
    spread = facts(tmp_path, f"{source}\nm = load(device_map='auto')\nm = FSDP(m)\n", net=own)
    assert spread.one_process_evidence and not spread.torchrun_evidence
    both = facts(tmp_path, f"{source}\nm = nn.DataParallel(m)\nm = FSDP(m)\n", net=own)
    assert bool(both.torchrun_evidence) == bool(option) and bool(both.one_process_evidence) != bool(option)


@pytest.mark.parametrize(
    ("source", "evidence"),
    [
        ("model = torch.compile(model)", "train.py:1 torch.compile"),
        ("@torch.compile\ndef step(): pass", "train.py:1 torch.compile"),
        ("import triton.language as tl", "train.py:1 triton.language"),
        ("from torch.utils.cpp_extension import load", "train.py:1 torch.utils.cpp_extension.load"),
        ("args = TrainingArguments(torch_compile=True)", "train.py:1 torch_compile=True"),
        ("model.compile(optimizer='adam')\nre.compile('x')", None),
    ],
)
def test_compiler_evidence(tmp_path: Path, source: str, evidence: str | None) -> None:
    assert facts(tmp_path, source).compiler_evidence == evidence


def test_evidence_in_a_module_of_the_project(tmp_path: Path) -> None:
    found = facts(
        tmp_path,
        "from engine import loop",
        engine__loop="from . import ranks\n",
        engine__ranks="\ndist.init_process_group()\n",
        engine____init__="",
    )
    assert found.torchrun_evidence == "engine/ranks.py:2 init_process_group"


@pytest.mark.parametrize(
    ("source", "run"),
    [
        ("from .net import x\n", "seatrial run -m lab.train"),
        ("def main():\n    from . import net\nmain()\n", "seatrial run -m lab.train"),
        ("try:\n    from .net import x\nexcept ImportError:\n    from net import x\n", None),
        ("def unused():\n    from .net import x\n", None),
        ("__package__ = 'lab'\nfrom .net import x\n", None),
    ],
)
def test_a_file_of_a_package_is_started_as_a_module(tmp_path: Path, source: str, run: str | None) -> None:
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab/net.py").write_text("from .train import y\nx = 1\n")
    (tmp_path / "lab/train.py").write_text(source)
    (tmp_path / "train.py").write_text("from .lab import net\n")
    if run is None:
        script_facts(Target(kind="script", value="lab/train.py"), tmp_path)
    else:
        with pytest.raises(TargetError) as refused:
            script_facts(Target(kind="script", value="lab/train.py"), tmp_path)
        assert refused.value.run == run
    script_facts(Target(kind="module", value="lab.train"), tmp_path)
    with pytest.raises(TargetError) as refused:
        script_facts(Target(kind="script", value="train.py"), tmp_path)
    assert refused.value.run == "in train.py:1 write: from lab import …"


def test_nothing_is_known_of_images_and_of_modules_elsewhere(tmp_path: Path) -> None:
    assert script_facts(Target(kind="image", value=""), tmp_path) == ScriptFacts()
    assert script_facts(Target(kind="module", value="torch.distributed.run"), tmp_path) == ScriptFacts()


def test_folders_of_the_jobs_python_path_are_the_projects_own(tmp_path: Path) -> None:
    """Follow the advice of a plan: the modules there are found and read."""
    (tmp_path / "lib" / "core").mkdir(parents=True)
    (tmp_path / "lib" / "core" / "__init__.py").write_text("import tabulate\n")
    (tmp_path / "train.py").write_text("import core\n")
    script, module = Target(kind="script", value="train.py"), Target(kind="module", value="core")
    (tmp_path / "lib" / "core" / "__main__.py").write_text("import humanize\n")
    for variable in ("lib", "/workspace/lib", f"/elsewhere:{tmp_path}/lib"):
        job = Job(project=tmp_path, target=script, env={"PYTHONPATH": variable})
        assert source_facts(job).imports == ("tabulate",)
        assert source_facts(job.model_copy(update={"target": module})).imports == ("humanize",)
    assert source_facts(Job(project=tmp_path, target=script)).imports == ("core",)
    found = source_facts(Job(project=tmp_path, target=module))
    assert (found.imports, found.where) == (("core",), {"core": "-m core"})


@pytest.mark.parametrize(
    ("source", "printed"), [("x = 1\nif x\n", "train.py:2: "), ("def f(:\n", "train.py:1: "), ("\0", "train.py:1: ")]
)
def test_a_syntax_error_is_reported_before_any_container(tmp_path: Path, source: str, printed: str) -> None:
    with pytest.raises(TargetError) as caught:
        facts(tmp_path, source)
    assert caught.value.message.startswith(printed)


def test_a_broken_module_that_may_never_be_imported_is_passed_over(tmp_path: Path) -> None:
    found = facts(tmp_path, "import torch\ntry:\n    import old\nexcept SyntaxError: pass", old="print 'python 2'")
    assert found.imports == ("torch",)


CERTAIN = {
    "at the top": "import lib\n",
    "in a block that runs in any case": "with open('x'):\n    for a in b:\n        import lib\n",
    "under the main check": "if __name__ == '__main__':\n    import lib\n",
    "in a function that is called": "def main():\n    import lib\nif __name__ == '__main__':\n    main()\n",
    "in a method that is called": "class T:\n    def fit(self):\n        import lib\nt = T()\nt.fit()\n",
    "in a constructor": "class T:\n  def __init__(self):\n    self.load()\n  def load(self):\n    import lib\nT()\n",
    "in a method of a class above": "class A:\n  def go(self):\n    import lib\nclass B(A): pass\nb = B()\nb.go()\n",
    "in a function that is handed over": "import fire\ndef main():\n    import lib\nfire.Fire(main)\n",
    "in place of what may be missing": "try:\n    import fast\nexcept ImportError:\n    import lib\n",
    "where its absence ends it": "try:\n    import lib\nexcept ImportError:\n    raise SystemExit('install lib')\n",
    "before a return": "def main(x):\n    import lib\n    if x:\n        return\nmain(1)\n",
}
OPTIONAL = {
    "behind a condition": "import sys\nif len(sys.argv) > 1:\n    import lib\n",
    "in a call behind a condition": "def log():\n    import lib\nif args.log:\n    log()\n",
    "in a function named in a condition": "def log():\n    import lib\nx = log if args.log else print\n",
    "where it may be missing": "try:\n    import lib\nexcept ImportError:\n    lib = None\n",
    "where any error is passed over": "try:\n    from lib import x\nexcept:\n    pass\n",
    "in place of a standard module": "try:\n    import tomllib\nexcept ImportError:\n    import lib as tomllib\n",
    "behind an early return": "def main(x):\n    if x:\n        return\n    import lib\nmain(1)\n",
    "in a function that nobody calls": "def export():\n    import lib\n",
    "in a lambda": "def g():\n    import lib\nf = lambda: g()\n",
    "in a match": "match x:\n    case 1:\n        import lib\n",
}
NEITHER = {
    "under TYPE_CHECKING": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import lib\n",
    "under typing.TYPE_CHECKING": "import typing\nif typing.TYPE_CHECKING:\n    import lib\n",
    "in a comment": "# import lib\n",
}


@pytest.mark.parametrize("source", CERTAIN.values(), ids=CERTAIN)
def test_an_import_that_the_script_cannot_do_without(tmp_path: Path, source: str) -> None:
    assert "lib" in facts(tmp_path, source).imports


@pytest.mark.parametrize("source", OPTIONAL.values(), ids=OPTIONAL)
def test_an_import_that_may_never_run(tmp_path: Path, source: str) -> None:
    assert "lib" not in facts(tmp_path, source).imports


@pytest.mark.parametrize("source", NEITHER.values(), ids=NEITHER)
def test_no_import(tmp_path: Path, source: str) -> None:
    found = facts(tmp_path, source)
    assert "lib" not in found.optional_imports and "lib" not in found.imports


def test_a_module_that_only_a_condition_imports_is_optional_and_all_that_it_imports(tmp_path: Path) -> None:
    found = facts(
        tmp_path, "import sys, data\nif len(sys.argv) > 1:\n    import export\n", data="", export="import onnx"
    )
    assert found.optional_imports == ("onnx",) and found.where == {"onnx": "export.py:1"}


def test_a_call_into_a_module_of_the_project(tmp_path: Path) -> None:
    source = "from tools import dist\nimport net as n\ndist.setup()\nn.Net()\n"
    found = facts(
        tmp_path,
        source,
        tools____init__="",
        tools__dist="def setup():\n    import mpi4py\ndef other():\n    import horovod\n",
        net="class Net:\n    def __init__(self):\n        import einops\n",
    )
    assert found.imports == ("einops", "mpi4py") and found.optional_imports == ()


NEEDS_RANKS = {
    "the variable": "import os\nrank = int(os.environ['LOCAL_RANK'])\n",
    "a process group": "import torch.distributed as dist\ndef main():\n    dist.init_process_group('nccl')\nmain()\n",
    "in both branches": "if gpu:\n    dist.init_process_group('nccl')\nelse:\n    dist.init_process_group('gloo')\n",
    "by environment": "dist.init_process_group('nccl', init_method='env://')\n",
    "a device mesh": "mesh = init_device_mesh('cuda', (2,))\n",
}


@pytest.mark.parametrize("source", NEEDS_RANKS.values(), ids=NEEDS_RANKS)
def test_a_script_that_cannot_run_without_torchrun(tmp_path: Path, source: str) -> None:
    assert facts(tmp_path, source).launcher_evidence


@pytest.mark.parametrize(
    ("script", "package", "roots"),
    [
        ("projects/adder/adder.py", "mingpt", (".",)),
        ("train.py", "mingpt", ()),
        ("scripts/train.py", "src/mingpt", ("src",)),
        ("scripts/train.py", "lib/mingpt", ("lib",)),
        ("scripts/train.py", "scripts/mingpt", ()),
    ],
)
def test_where_the_projects_own_packages_are_imported_from(
    tmp_path: Path, script: str, package: str, roots: tuple[str, ...]
) -> None:
    (tmp_path / package).mkdir(parents=True)
    (tmp_path / package / "__init__.py").write_text("import torch")
    (tmp_path / "setup.py").write_text("from setuptools import setup\nsetup(name='minGPT')")
    (tmp_path / script).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / script).write_text("from mingpt.utils import x\n")
    found = script_facts(Target(kind="script", value=script), tmp_path)
    assert (found.import_roots, found.imports) == (roots, ("torch",))


def test_a_folder_without_init_is_the_projects_where_something_in_it_is_imported(tmp_path: Path) -> None:
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "coco.py").touch()
    (tmp_path / "train.py").write_text("import datasets\nfrom datasets import coco\n")
    assert script_facts(Target(kind="script", value="train.py"), tmp_path).imports == ()
    (tmp_path / "train.py").write_text("from datasets import load_dataset\n")
    assert script_facts(Target(kind="script", value="train.py"), tmp_path).imports == ("datasets",)


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ("from .version import *\n", {".version": "esr/__init__.py:1"}),
        ("from esr.ops.gpu_nms import nms\n", {"esr.ops.gpu_nms": "esr/__init__.py:1"}),
        ("from . import something\n", {}),
        ("from .compiled import x\n", {}),
        ("from .folder import x\n", {}),
        ("try:\n    from .version import *\nexcept ImportError:\n    pass\n", {}),
        ("from esr import name\n", {}),
        ("import esr.version\n", {"esr.version": "esr/__init__.py:1"}),
    ],
)
def test_a_module_of_a_package_of_the_project_that_is_not_there(
    tmp_path: Path, source: str, missing: dict[str, str]
) -> None:
    (tmp_path / "esr" / "ops").mkdir(parents=True)
    (tmp_path / "esr" / "folder").mkdir()
    (tmp_path / "esr" / "ops" / "__init__.py").touch()
    (tmp_path / "esr" / "compiled.cpython-311-x86_64-linux-gnu.so").touch()
    (tmp_path / "esr" / "__init__.py").write_text(source)
    (tmp_path / "train.py").write_text("import esr\n")
    assert script_facts(Target(kind="script", value="train.py"), tmp_path).missing == missing
