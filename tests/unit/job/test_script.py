from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.errors import TargetError
from seatrial.job.model import Target
from seatrial.job.script import ScriptFacts, script_facts


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
        ("import pandas", None),
    ],
)
def test_framework(tmp_path: Path, source: str, framework: str | None) -> None:
    assert facts(tmp_path, source).framework == framework


@pytest.mark.parametrize(
    ("source", "torchrun", "one_process"),
    [
        ("import torch.distributed as dist\ndist.init_process_group('nccl')", "train.py:2 init_process_group", None),
        ("import os\nrank = int(os.environ['LOCAL_RANK'])", "train.py:2 LOCAL_RANK", None),
        ("from accelerate import Accelerator\naccelerator = Accelerator()", "train.py:2 Accelerator", None),
        ("model = FSDP(model)", "train.py:1 FSDP", None),
        ("model = nn.DataParallel(model)", None, "train.py:1 DataParallel"),
        ("model = load('x', device_map='auto')", None, "train.py:1 device_map"),
        ("model = load('x', device_map=None)", None, None),
        # Starts its own ranks: under torchrun each would start a world of them.
        ("mp.spawn(main, nprocs=2)\ndist.init_process_group('nccl')", None, "train.py:1 mp.spawn"),
        ("mp.spawn(loader)", None, None),
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


def test_modules_that_import_each_other_end(tmp_path: Path) -> None:
    assert facts(tmp_path, "import a", a="import b", b="import a, train").files == ("train.py", "a.py", "b.py")


def test_a_module_of_the_project_in_src(tmp_path: Path) -> None:
    package = tmp_path / "src" / "pkg"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("import torch\nfrom pkg import net")
    (package / "net.py").write_text("import einops")
    found = script_facts(Target(kind="module", value="pkg"), tmp_path)
    assert found.imports == ("einops", "torch")


def test_a_recipe_is_read_where_it_is_installed(tmp_path: Path) -> None:
    found = script_facts(Target(kind="recipe", value="digits"), tmp_path)
    assert {"torch", "sklearn"} <= set(found.imports)
    assert found.framework == "torch"
    assert found.files == ("digits.py",)


def test_nothing_is_known_of_images_and_of_modules_elsewhere(tmp_path: Path) -> None:
    assert script_facts(Target(kind="image", value=""), tmp_path) == ScriptFacts()
    assert script_facts(Target(kind="module", value="torch.distributed.run"), tmp_path) == ScriptFacts()


@pytest.mark.parametrize(
    ("source", "said"), [("x = 1\nif x\n", "train.py:2: "), ("def f(:\n", "train.py:1: "), ("\0", "train.py:1: ")]
)
def test_a_syntax_error_is_told_before_any_container(tmp_path: Path, source: str, said: str) -> None:
    with pytest.raises(TargetError) as caught:
        facts(tmp_path, source)
    assert caught.value.message.startswith(said)


def test_a_broken_module_that_may_never_be_imported_is_passed_over(tmp_path: Path) -> None:
    found = facts(tmp_path, "import torch\ntry:\n    import old\nexcept SyntaxError: pass", old="print 'python 2'")
    assert found.imports == ("torch",)


def test_invalid_escapes_print_no_warning(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    facts(tmp_path, "x = '\\d'")
    assert not recwarn.list
