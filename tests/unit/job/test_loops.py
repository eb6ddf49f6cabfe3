"""Reads, writes and checks in each pass of loops over written lists and tables."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from seatrial.job.host_paths import missing_inputs
from seatrial.job.model import Job, Target
from seatrial.job.reading.constants import Constants
from seatrial.job.reading.flow import Flow
from seatrial.job.reading.loops import Loops
from seatrial.job.reading.parsed_modules import Module
from seatrial.job.script import ScriptFacts, script_facts

SCRIPT = Path("train.py")


def passes(source: str) -> list[str]:
    """Return ``x='a' y='b'`` for each pass of the loop around the line of ``use()``, with ``?`` for one in doubt."""
    module = Module(SCRIPT, SCRIPT.name, Flow(ast.parse(source), main=True, provided=lambda _: True), source.encode())
    constants = Constants(lambda _: module, (), Path())
    [line] = (at for at, text in enumerate(source.splitlines(), 1) if "use()" in text)
    found = Loops(lambda _: module, constants).passes((SCRIPT, ""), line)
    return [
        " ".join(
            f"{name}={ast.unparse(each.node) if each.node else None}{'' if each.sure else '?'}"
            for (_, name), each in values.items()
        )
        for values in found
    ]


def facts_of(folder: Path, source: str) -> tuple[Job, ScriptFacts]:
    (folder / "train.py").write_text(f"import os\nfrom glob import glob\nimport numpy as np\n{source}")
    target = Target(kind="script", value="train.py")
    return Job(project=folder, target=target), script_facts(target, folder)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("for x in ('a', 'b'):\n    use()\n", ["x='a'", "x='b'"]),
        ("X = ['a', 'b']\nfor x in X:\n    use()\n", ["x='a'", "x='b'"]),
        ("for x in ['a', *more]:\n    use()\n", ["x='a'"]),
        ("for at, x in enumerate(['a', 'b']):\n    use()\n", ["x='a'", "x='b'"]),
        ("for x, y in [('a', 'b'), ('c', 'd')]:\n    use()\n", ["x='a' y='b'", "x='c' y='d'"]),
        ("for x in {'a': 'b'}:\n    use()\n", ["x='a'"]),
        ("for x in {'a': 'b'}.keys():\n    use()\n", ["x='a'"]),
        ("for x in {'a': 'b'}.values():\n    use()\n", ["x='b'"]),
        ("X = dict(a='b')\nfor x, y in X.items():\n    use()\n", ["x='a' y='b'"]),
        ("X = {'a': 'b'}\nX['c'] = 'd'\nfor x, y in X.items():\n    use()\n", ["x='a'? y='b'?", "x='c'? y='d'?"]),
        ("X = ['a']\nX.pop()\nfor x in X:\n    use()\n", ["x='a'?"]),
        ("for x in ['a', 'b']:\n    use()\n    break\n", ["x='a'?", "x='b'?"]),
        ("for x in ['a']:\n    for y in ['b']:\n        use()\n", ["y='b'"]),
        ("for x in ['a']:\n    for y in more():\n        use()\n", ["x='a'"]),
        ("for x in range(9):\n    use()\n", []),
        ("for x in ['a'] + more():\n    use()\n", []),
        ("for x in ['a']:\n    x = x.upper()\n    use()\n", []),
        ("for x, y in ['a']:\n    use()\n", []),
        ("for x in ['a']:\n    pass\nuse()\n", []),
        (f"for x in {[*range(20)]}:\n    use()\n", [f"x={at}" for at in range(8)]),
    ],
)
def test_a_pass_has_the_values_that_are_written(source: str, expected: list[str]) -> None:
    assert passes(source) == expected


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            "sets = [('train', 'd/train.npy'), ('val', 'd/val.npy')]\nfor name, path in sets:\n    np.load(path)\n",
            "reads d/train.npy (train.py:6 d/val.npy), which",
        ),
        (
            "sets = {'a': 'd/a.npy', 'b': 'd/b.npy'}\nfor name, path in sets.items():\n    np.load(path)\n",
            "reads d/a.npy (train.py:6 d/b.npy), which",
        ),
        (
            "def load(name):\n    np.load(f'd/{name}.npy')\nfor at, name in enumerate(['a', 'b']):\n    load(name)\n",
            "reads d/a.npy (train.py:5 d/b.npy), which",
        ),
    ],
    ids=["pairs of a list", "items of a table", "around a call"],
)
def test_the_inputs_of_each_pass_are_missed(tmp_path: Path, source: str, words: str) -> None:
    job, facts = facts_of(tmp_path, source)
    [sentence] = missing_inputs(job, facts.reads)
    assert words in sentence


@pytest.mark.parametrize(
    "source",
    [
        "for name in ['a', 'b'] + more():\n    np.load(name)\n",
        "os.makedirs('d')\nfor name in ['a', 'b']:\n    np.save(f'd/{name}.npy', x)\nnp.load('d/b.npy')\n",
    ],
    ids=["a longer list", "made in a loop"],
)
def test_what_a_run_may_do_without_is_no_missing_input(tmp_path: Path, source: str) -> None:
    _, facts = facts_of(tmp_path, source)
    assert (facts.reads, facts.inputs) == ((), ())


@pytest.mark.parametrize(
    "source",
    [
        "for x in ['a', 'b']:\n    x = x.upper()\n    open(x)\n",
        "for x in ['a', 'b']:\n    open(x)\n    break\n",
        "for at, x in enumerate(['a', 'b']):\n    if at:\n        continue\n    open(x)\n",
        "X = ['a', 'b']\nX.pop()\nfor x in X:\n    open(x)\n",
        "X = {'a': 'a', 'b': 'b'}\ndel X['b']\nfor x in X.values():\n    open(x)\n",
        "X = {'a': 'a'}\nX['a'] = 'd/y'\nfor _, x in X.items():\n    open(x)\n",
        "for x in ['a']:\n    for x in glob('*'):\n        open(x)\n",
        "for x in ['a']:\n    [open(x) for x in glob('*')]\n",
    ],
)
def test_what_a_run_perhaps_does_not_read_is_not_missing_for_certain(tmp_path: Path, source: str) -> None:
    assert facts_of(tmp_path, source)[1].reads == ()
