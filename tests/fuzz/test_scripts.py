"""The user's scripts, read with ``ast`` and never run."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.attack import attack, one_case
from fuzz.hostile import nearly
from seatrial.images.plan import plan_image
from seatrial.job.model import Job, Target
from seatrial.job.script import script_facts

SCRIPT = """\
import os, sys
import torch
import torch.distributed as dist
from torch import nn
from helpers.data import load as load_data, other
from . import sibling
import triton

def main():
    rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group("nccl")
    model = torch.compile(nn.Linear(1, 1))
    mp.spawn(main, nprocs=2)
    AutoModel.from_pretrained("x", device_map="auto", torch_compile=True)

if __name__ == "__main__":
    main()
"""


def read(project: Path, data: bytes, name: str = "train.py") -> object:
    (project / name).write_bytes(data)
    job = Job(project=project, target=Target(kind="script", value="train.py"))
    facts = script_facts(job.target, project)
    return plan_image(job, script=facts, cpu_only=True)


def test_script(project: Path, cases: int) -> None:
    (project / "helpers").mkdir()
    (project / "helpers" / "data.py").write_text("import numpy\n")
    attack(lambda data: read(project, data), nearly(SCRIPT), cases)


def test_imported_module(project: Path, cases: int) -> None:
    (project / "train.py").write_text("import helpers\n")
    attack(lambda data: read(project, data, "train.py") or read(project, data, "helpers.py"), nearly(SCRIPT), cases)


#: None: the plan goes on; else it is refused with these words in the sentence.
KNOWN = {
    "additions": ("a = 1" + " + 1" * 20_000, "nested"),
    "brackets": ("(" * 30_000, ""),
    "calls": ("a" + "()" * 15_000, "nested"),
    "attributes": ("a" + ".a" * 30_000, "nested"),
    "unary": ("x = " + "-" * 30_000 + "1", "nested"),
    "lambdas": ("x = " + "lambda: " * 30_000 + "1", "nested"),
    "else if": ("if 1:\n pass\n" + "elif 1:\n pass\n" * 9_000, "nested"),
    "strings": ("x = " + "'a' " * 15_000, None),
    "fields": ("x = f'" + "{a}" * 15_000 + "'", None),
    "a null byte": ("import torch\0", ""),
    "not ascii": ("import é\n", None),
    "a private name": ("import _C\nimport __main__\n", None),
    "not UTF-8": (b"x = '\xff\xfe'\n", ""),
    "an encoding that is none": ("# coding: rot13\nx = 1\n", ""),
    "strings without end": ("x = " + "'a' " * 100_000, None),
    "many imports": ("import a\n" * 35_000, None),
    "many other imports": ("".join(f"import a{n}\n" for n in range(35_000)), None),
    "statements": ("f(a)\n" * 13_000, None),
    "many names": ("from helpers import " + ", ".join(f"a{n}" for n in range(35_000)), None),
    "a long name": ("import " + ".".join(["a"] * 30_000), "nested"),
    "a name too long": ("import " + "a" * 100_000, None),
    "far up": ("from " + "." * 5000 + "a import b", "which only a module of a package can"),
    "numbers": ("x = [" + "1," * 400_000 + "]", None),
    "a long number": ("x = " + "9" * 100_000, ""),
    "an indentation": ("\n".join(" " * n + "if 1:" for n in range(150)), ""),
}


@pytest.mark.parametrize("known", KNOWN)
def test_known(project: Path, known: str) -> None:
    (project / "helpers").mkdir()
    source, printed = KNOWN[known]
    data = source if isinstance(source, bytes) else source.encode()
    refused = one_case(lambda data: read(project, data), data)
    assert (refused is None) == (printed is None), refused
    assert printed is None or (printed in str(refused) and "train.py" in str(refused))


@pytest.mark.parametrize("below", ["", "if late:\n    "], ids=["by every run", "perhaps"])
@pytest.mark.parametrize("known", KNOWN)
def test_known_in_an_imported_module(project: Path, known: str, below: str) -> None:
    """A module that does not parse ends a run that imports it; one below a condition may never be imported."""
    source, printed = KNOWN[known]
    (project / "helpers.py").write_bytes(source if isinstance(source, bytes) else source.encode())
    refused = one_case(lambda data: read(project, data), f"import torch\n{below}import helpers\n".encode())
    assert (refused is None) == (bool(below) or printed is None or printed == "nested"), refused
    assert refused is None or (str(printed) in str(refused) and "helpers.py:" in str(refused))


def test_a_project_of_large_modules(project: Path) -> None:
    """Reading stops after some megabytes of source; the script itself was first."""
    names = [f"module_{number}" for number in range(300)]
    for name in names:
        (project / f"{name}.py").write_text("x = [" + "1," * 60_000 + "]\n")
    source = "import torch\n" + "".join(f"import {name}\n" for name in names)
    assert one_case(lambda data: read(project, data), source.encode()) is None
