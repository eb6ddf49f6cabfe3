"""Python 2 in an imported module is reported at once; newer syntax than a Python reads keeps that Python away."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from planning_sites import facts_of
from seatrial.errors import ConfigError, TargetError
from seatrial.images.plan import plan_image
from seatrial.job.model import Job, Target
from seatrial.job.script import script_facts


def test_python_2_in_the_target_and_behind_two_imports(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"^train\.py:2 print 'x': this is Python 2"):
        facts_of(tmp_path, "import torch\nprint 'x'\n")
    layers = "class Layer:\n    def f(self):\n        print self\n"
    net = {"net____init__": "from .layers import Layer\n", "net__layers": layers}
    with pytest.raises(TargetError, match=r"^net/layers\.py:3 print self: this is Python 2"):
        facts_of(tmp_path, "def main():\n    import net\nmain()\n", **net)


def test_newer_syntax_keeps_older_pythons_away(tmp_path: Path) -> None:
    match = "def f(x):\n    match x:\n        case 1:\n            return 2\n"
    found = facts_of(tmp_path, "import net\n", net=match)
    assert found.least_python == ((3, 10), "net.py:2")
    (tmp_path / "requirements.txt").write_text("torch==1.13.1\n")
    job = Job(project=tmp_path, target=Target(kind="script", value="train.py"))
    assert plan_image(job, script=found, cpu_only=True)[0].base == "python:3.10-slim-bookworm"
    (tmp_path / "requirements.txt").write_text("torch==1.9.0\n")
    with pytest.raises(ConfigError, match=r"net\.py:2 is syntax of Python 3\.10 and later.*torch 1\.9\.0"):
        plan_image(job, script=found, cpu_only=True)


def test_a_ready_image_may_have_that_python(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text("print 'x'\n")
    for script in ("import old\n", "print 'x'\n"):
        (tmp_path / "train.py").write_text(script)
        assert script_facts(Target(kind="script", value="train.py"), tmp_path, any_python=True).imports == ()


@pytest.mark.skipif(sys.version_info < (3, 14), reason="this Python cannot parse it")
@pytest.mark.parametrize("line", ["try:\n    pass\nexcept OSError, ValueError:\n    pass\n", "x = t'{2}'\n"])
def test_syntax_of_3_14(tmp_path: Path, line: str) -> None:
    newest = facts_of(tmp_path, line).least_python
    assert newest is not None and newest[0] == (3, 14)
