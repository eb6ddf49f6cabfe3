"""Undefined names: an error where every run reaches them, a warning elsewhere, and no false alarm."""

from __future__ import annotations

from pathlib import Path

import pytest

from planning_sites import facts_of

TRAIN = "from settings import *\nimport settings, torch\ndef train():\n    for epoch in range(EPOCHS):\n        pass\n"
SETTINGS = "EPOCHS = 3\nMODEL_DIR = 'models'\n"


@pytest.mark.parametrize(
    ("end", "failing", "warned"),
    [
        ("    torch.save(1, MODEL_PATH)\ntrain()\n", True, False),
        ("    torch.save([x for x in MODEL_PATH], '')\ntrain()\n", True, False),
        ("    torch.save([MODEL_PATH for x in range(EPOCHS)], '')\ntrain()\n", False, True),
        ("deep = False\nif deep:\n    print(MODEL_PATH)\n", False, False),
        ("if not EPOCHS:\n    print(MODEL_PATH)\n", False, True),
        ("train()\nclass Net:\n    path = MODEL_PATH\n", True, False),
        ("def test():\n    MODEL_PATH = ''\ntrain()\nprint(MODEL_PATH)\n", True, False),
        ("    if EPOCHS > 2:\n        torch.save(1, MODEL_PATH)\ntrain()\n", False, True),
        ("def test():\n    torch.save(1, MODEL_PATH)\nif EPOCHS > 2:\n    test()\n", False, True),
        ("def test():\n    torch.save(1, MODEL_PATH)\n", False, False),
        ("def at(x: MODEL_PATH): pass\ntrain()\n", False, False),
        ("    path: MODEL_PATH = 1\ntrain()\n", False, False),
        ("    try:\n        print(MODEL_PATH)\n    except NameError:\n        pass\ntrain()\n", False, False),
        ("    print((lambda MODEL_PATH: MODEL_PATH)(1), __file__, __class__)\ntrain()\n", False, False),
        ("    global MODEL_PATH\n    MODEL_PATH = 1\ntrain()\nprint(MODEL_PATH)\n", False, False),
        ("if EPOCHS > 5:\n    MODEL_PATH = ''\ntrain()\nprint(MODEL_PATH)\n", False, False),
        ("globals().update(MODEL_PATH=1)\nprint(MODEL_PATH)\n", False, False),
        ("exec(open('settings.py').read())\nprint(MODEL_PATH)\n", False, False),
        ("from tkinter import *\nprint(MODEL_PATH)\n", False, False),
        ("def outer():\n    MODEL_PATH = 1\n    def inner(): print(MODEL_PATH)\n    inner()\nouter()\n", False, False),
        ("print(get_ipython, display, [i for i in 'ab'])\n", False, False),
        ("    return\n    print(MODEL_PATH)\ntrain()\nif False:\n    print(MODEL_PATH)\n", False, False),
        ("assert EPOCHS, MODEL_PATH\ntrain()\n", False, True),
        (
            "    if EPOCHS:\n        return\n    else:\n        raise OSError\n    print(MODEL_PATH)\ntrain()\n",
            False,
            False,
        ),
        ("with pytest.raises(NameError):\n    print(MODEL_PATH)\n", False, False),
        ("if False:\n    from typing import TYPE_CHECKING\nx = 1  # type: MODEL_PATH\n", False, False),
    ],
)
def test_a_name_that_nothing_defines(tmp_path: Path, end: str, failing: bool, warned: bool) -> None:
    facts = facts_of(tmp_path, TRAIN + end, settings=SETTINGS)
    sides = [sentence for sentence, _ in facts.failing], facts.misfits
    assert [any("uses MODEL_PATH, which is not" in each for each in side) for side in sides] == [failing, warned]


@pytest.mark.parametrize(
    "sets",
    [
        "settings.RANK = 0",
        "for name in 'AB':\n    setattr(settings, name, 0)",
        "settings.__dict__.update(RANK=0)",
        "import builtins as b\nb.RANK = 0",
    ],
)
def test_a_name_that_another_module_sets(tmp_path: Path, sets: str) -> None:
    source = f"import settings\n{sets}\nsettings.show()\n"
    assert facts_of(tmp_path, source, settings="def show():\n    print(RANK)\n").failing == ()


@pytest.mark.parametrize(
    ("source", "failing", "warned"),
    [
        ("x = x.to(0)\n", True, False),
        ("for i in range(3):\n    x += i\n", True, False),
        ("for i in [*open('a')]:\n    x += i\n", False, True),
        ("print(x)\nx = 1\n", True, False),
        (
            "def f(a):\n    return x * a\n    x = 1\ndef g(rate, *, y=1):\n    x = x * y\nx = 1\nf(2)\ng(1)\n",
            True,
            False,
        ),
        ("def f():\n    x = x + 1\nif i:\n    f()\n", False, True),
        ("try:\n    print(x, x)\nexcept RuntimeError:\n    pass\nx = 1\n", True, False),
        ("try:\n    print([x for i in []])\n    x = x\nexcept RuntimeError:\n    pass\n", False, True),
        ("try:\n    x = x\nexcept NameError:\n    x = 1\n", False, False),
        ("for i in range(3):\n    if i:\n        print(i and x)\n    x = i\nelse:\n    print(x)\n", False, False),
        (
            "for i in range(3):\n    for j in []:\n        x = x\n    print(i and x, x if i else 1)\n    x = 1\n",
            False,
            False,
        ),
        ("if i:\n    x = 1\nprint(x)\nx = 2\n", False, False),
        ("def f():\n    global x\n    x = 1\nf()\nprint(x)\nx = x\n", False, False),
        (
            "def f():\n    def g():\n        nonlocal x\n        x = 1\n    g()\n    print(x)\n    x = 2\nf()\n",
            False,
            False,
        ),
        ("if (x := 1) and [x for x in 'ab']:\n    print(x)\ny, z = (lambda x: x, x)\nx = x\n", False, False),
        ("try:\n    x = 1\nexcept OSError as y:\n    print(y)\nfinally:\n    print(x)\nx = 2\ny = x\n", False, False),
        ("import x.y\nwith open(x.y) as f, open(f) as y:\n    print(f)\nf = x\ndel f\n", False, False),
        ("match i:\n    case [x, *y] if x:\n        print(x, y)\nprint(x)\nx = y = 1\n", False, False),
        (
            "for n in range(i):\n    if n == 0:\n        print(n)\n    else:\n        print(x)\n    x = n\n",
            False,
            False,
        ),
        ("if 'x' not in dir():\n    x = 1\nelse:\n    x = x\nx = x\n", False, False),
        ("while True:\n    try:\n        print(i)\n    except OSError:\n        print(x)\n    x = 1\n", False, False),
        ("def f(x, *y, **z):\n    x = x; y = y; z = z\n    input = 1\ninput = input\nf(1)\n", False, False),
    ],
)
def test_a_name_that_nothing_assigns_before(tmp_path: Path, source: str, failing: bool, warned: bool) -> None:
    facts = facts_of(tmp_path, f"import sys\ni = len(sys.argv)\n{source}")
    sides = [sentence for sentence, _ in facts.failing], facts.misfits
    assert [any("uses x, which nothing assigns before" in each for each in side) for side in sides] == [failing, warned]
    assert not any(" y" in each or " z" in each or "input" in each for side in sides for each in side)


def test_names_at_one_place_are_one_sentence(tmp_path: Path) -> None:
    source = "try:\n    c = model(inputs, size)\nexcept (RuntimeError, OSError):\n    pass\n"
    [(sentence, fix)] = facts_of(tmp_path, source).failing
    assert sentence == "train.py:2 uses model, inputs and size, which are not defined"
    assert fix == "define model, inputs and size in train.py, or import them"


def test_an_imported_module_behind_large_ones_is_searched(tmp_path: Path) -> None:
    for name, size in (("first", 40_000), ("second", 400_000), ("third", 40_000)):
        (tmp_path / f"{name}.py").write_text("# a comment of it\n" * (size // 18))
    source = "import first, second, third, settings\nsettings.show()\n"
    facts = facts_of(tmp_path, source, settings="def show():\n    return [i for i in xrange(3)]\n")
    [(sentence, edit)] = facts.failing
    assert sentence.startswith("settings.py:2 uses xrange, which is not defined")
    assert edit == f"2to3 -w {tmp_path}/settings.py"
