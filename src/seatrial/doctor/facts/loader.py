"""The program that looks inside, as text for ``python -c``, and the modules that it gets on standard input."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import seatrial

#: Imports the modules that come on stdin and calls one of them: nothing is mounted, copied or left behind.
LOADER = """
import importlib.abc, importlib.machinery, json, sys
order = json.load(sys.stdin)
class Modules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name in order["modules"]:
            return importlib.machinery.ModuleSpec(name, self, is_package=order["modules"][name][0])
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        exec(compile(order["modules"][module.__name__][1], module.__name__, "exec"), module.__dict__)
sys.meta_path.insert(0, Modules())
from seatrial.probe import inside
inside.main(order["gpus"])
"""


def modules() -> dict[str, tuple[bool, str]]:
    """Name → (is a package, its text) of what the inspection imports: probe and pynvml."""
    package = Path(seatrial.__file__).parent
    found = {"seatrial": (True, "")}
    for file in sorted((package / "probe").glob("*.py")):
        name = "seatrial.probe" + ("" if file.stem == "__init__" else f".{file.stem}")
        found[name] = (file.stem == "__init__", file.read_text())
    spec = importlib.util.find_spec("pynvml")
    if spec is not None and spec.origin is not None:
        found["pynvml"] = (False, Path(spec.origin).read_text())
    return found
