"""Python 2 in what the target imports is told at once; newer syntax than a Python reads keeps that Python away."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from seatrial.errors import ConfigError, TargetError
from seatrial.images.plan import plan_image
from seatrial.job.model import Job, Target
from seatrial.job.script import ScriptFacts, script_facts
from seatrial.system.typed_path import as_typed

PYTHON_2 = [
    "print 'loss', loss\n",
    "print loss\n",
    "def show(x):\n    if x: print x\n",
    "def show(x):\n    print >>sys.stderr, x; print `x`\n",
    "try:\n    pass\nexcept IOError, e:\n    pass\n",
    "try:\n    pass\nexcept (IOError, OSError), e:\n    pass\n",
    "exec 'x = 1'\n",
    "raise ValueError, 'too small'\n",
    "if 1 <> 2:\n    pass\n",
    "mode = 0777\n",
    "size = 10L\n",
    "pattern = ur'a'\n",
    "pairs = sorted({}, key=lambda (k, v): v)\n",
    "def add((a, b)):\n    pass\n",
]


def facts(project: Path, script: str, **modules: str) -> ScriptFacts:
    for name, text in {"train": script, **modules}.items():
        (project / f"{name}.py").write_text(text)
    return script_facts(Target(kind="script", value="train.py"), project)


@pytest.mark.parametrize("source", PYTHON_2)
def test_python_2_in_a_module_is_told_with_file_and_line(tmp_path: Path, source: str) -> None:
    with pytest.raises(TargetError, match=r"^old\.py:\d+ .*: this is Python 2, which no image") as caught:
        facts(tmp_path, "import old\n", old=f"import sys\n{source}")
    assert (
        caught.value.run
        == f"2to3 -w {as_typed(tmp_path / 'old.py')}   # or an image that has Python 2: seatrial run --image IMAGE …"
    )


def test_python_2_in_the_target_and_behind_two_imports(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"^train\.py:2 print 'x': this is Python 2"):
        facts(tmp_path, "import torch\nprint 'x'\n")
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "__init__.py").write_text("from .layers import Layer\n")
    (tmp_path / "net" / "layers.py").write_text("class Layer:\n    def f(self):\n        print self\n")
    with pytest.raises(TargetError, match=r"^net/layers\.py:3 print self: this is Python 2"):
        facts(tmp_path, "def main():\n    import net\nmain()\n")


@pytest.mark.parametrize(
    "script",
    [
        "import sys\nif sys.version_info[0] == 2:\n    import old\n",
        "try:\n    import old\nexcept ImportError:\n    old = None\n",
        "def never():\n    import old\n",
        "import torch\n",
    ],
)
def test_python_2_that_may_never_be_imported_is_no_matter(tmp_path: Path, script: str) -> None:
    assert facts(tmp_path, script, old="print 'x'\n").least_python is None


@pytest.mark.parametrize(
    "broken",
    [
        "x = {1: 2\n",
        "def f(a, b=(1, 2)\n",
        "f = lambda x: (x,\n",
        "a b\n",
        "print('a'\n",
        "mode = '0777' + x y\n",
        "\x00",
    ],
)
def test_a_slip_is_not_python_2(tmp_path: Path, broken: str) -> None:
    facts(tmp_path, "import slip\n", slip=broken)  # told when it runs: it may be newer than the Python here
    with pytest.raises(TargetError) as caught:
        facts(tmp_path, broken)
    assert "Python 2" not in caught.value.message


def test_newer_syntax_keeps_older_pythons_away(tmp_path: Path) -> None:
    match = "def f(x):\n    match x:\n        case 1:\n            return 2\n"
    found = facts(tmp_path, "import net\n", net=match)
    assert found.least_python == ((3, 10), "net.py:2")
    (tmp_path / "requirements.txt").write_text("torch==1.13.1\n")
    job = Job(project=tmp_path, target=Target(kind="script", value="train.py"))
    assert plan_image(job, script=found, cpu_only=True)[0].base == "python:3.10-slim-bookworm"
    (tmp_path / "requirements.txt").write_text("torch==1.9.0\n")
    with pytest.raises(ConfigError) as caught:
        plan_image(job, script=found, cpu_only=True)
    assert "net.py:2 is syntax of Python 3.10 and later" in caught.value.message
    assert "torch 1.9.0" in caught.value.message


def test_a_ready_image_may_have_that_python(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text("print 'x'\n")
    for script in ("import old\n", "print 'x'\n"):
        (tmp_path / "train.py").write_text(script)
        assert script_facts(Target(kind="script", value="train.py"), tmp_path, any_python=True).imports == ()


@pytest.mark.skipif(sys.version_info < (3, 14), reason="this Python cannot parse it")
@pytest.mark.parametrize("line", ["try:\n    pass\nexcept OSError, ValueError:\n    pass\n", "x = t'{2}'\n"])
def test_syntax_of_3_14(tmp_path: Path, line: str) -> None:
    newest = facts(tmp_path, line).least_python
    assert newest is not None and newest[0] == (3, 14)
