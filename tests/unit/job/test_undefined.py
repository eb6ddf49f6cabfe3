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
        ("    torch.save([x for x in MODEL_PATH], '')\ntrain()\n", False, True),
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
