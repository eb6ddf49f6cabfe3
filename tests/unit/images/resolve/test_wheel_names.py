"""Names that a wheel's modules have, lack, or may make at run time."""

from __future__ import annotations

import io
import time
import zipfile

import pytest

from seatrial.images.resolve.wheel_names import Modules

REMOVED = 'raise RuntimeError("`ToTensor` is obsolete and it was removed. Use `ToTensorV2`")'
TRANSFORMS = f'''class ToTensor(Basic):
    """Convert."""

    def __init__(self, n=1):
        {REMOVED}

class ToTensorV2(Basic):
    def __init__(self):
        self.n = 1

def gone(x):
    {REMOVED}

class Auto:
    def __init__(self):
        raise OSError("use Auto.from_pretrained")
'''
ARGUMENTS = """from dataclasses import dataclass, field
from .models import Other

@dataclass
class Base:
    size: int = field(default=1)

@dataclass
class Arguments(Base):
    depth: int = 1

class Net:
    def __init__(self, width, *, bias=True):
        pass

class Wide(Net):
    pass

class Open(Net):
    def __init__(self, **kwargs):
        pass

class Foreign(Other):
    pass

class Trainer:
    @deprecate_kwarg("tokenizer")
    def __init__(self, model):
        pass

if FAST:
    def run(speed):
        pass
else:
    def run(steps):
        pass
"""
FILES = {
    "lazy/__init__.py": "if TYPE_CHECKING:\n    from .args import Arguments, Net as Model\n",
    "lazy/args.py": ARGUMENTS,
    "pkg/__init__.py": "from .transforms import *\n",
    "pkg/transforms.py": TRANSFORMS,
    "pkg/made.py": "for name in names:\n    globals()[name] = 1\n",
    "pkg/models.py": "# These utils are public.\nfrom ..utils import log\n",
    "torch/__init__.py": "",
    "torch/_jit_internal.py": "class A:\n    def __getattr__(self, name):\n        setattr(fn, name, 1)\n"
    'for i in range(2, 7):\n    globals()[f"List{i}"] = A\n',
    "torch/_lazy.py": "def __getattr__(name):\n    return import_module(name)\n",
}


@pytest.mark.parametrize(
    ("name", "has"),
    [
        ("pkg.transforms.ToTensor", False),
        ("pkg.ToTensor", False),
        ("pkg.transforms.gone", False),
        ("pkg.ToTensorV2", True),
        ("pkg.transforms.Auto", True),
        ("pkg.made.Thing", None),
        ("pkg.models.utils.load", False),
        ("pkg.models.log", True),
        ("lazy.Arguments(depth=)", True),
        ("lazy.Arguments(size=)", True),
        ("lazy.Arguments(width=)", False),
        ("lazy.Model(bias=)", True),
        ("lazy.Model(depth=)", False),
        ("lazy.args.Wide(width=)", True),
        ("lazy.args.Wide(depth=)", False),
        ("lazy.args.Open(width=)", None),
        ("lazy.args.Foreign(width=)", None),
        ("lazy.args.Trainer(model=)", True),
        ("lazy.args.Trainer(tokenizer=)", True),
        ("lazy.args.Trainer(data=)", None),
        ("lazy.args.run(tempo=)", None),
        ("lazy.Arguments.make(tempo=)", None),
        ("torch._jit_internal.weak_module", False),
        ("torch._jit_internal.List2", True),
        ("torch._jit_internal.A", True),
        ("torch._lazy.thing", None),
    ],
)
def test_a_name_is_missing_if_nothing_defines_it_or_its_code_only_says_that_it_was_removed(
    name: str, has: bool | None
) -> None:
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in FILES.items():
            archive.writestr(path, text)
    assert Modules(wheel).has(name) is has  # type: ignore[arg-type]


def test_a_class_of_many_bases_is_read_once() -> None:
    bases = (", ".join(f"C{at}" for at in range(max(0, number - 4), number)) for number in range(40))
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("net.py", "\n".join(f"class C{number}({each}): ..." for number, each in enumerate(bases)))
    started = time.process_time()
    assert Modules(wheel).has("net.C39(depth=)") is None  # type: ignore[arg-type]
    assert time.process_time() - started < 1
