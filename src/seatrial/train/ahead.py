"""What a recipe does before and beside ``import torch``, which is most of its start. Imports no framework.

A recipe calls ``begin`` above its imports, where it runs as a program: with strangers' code in the same process none of
this would be its to decide.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import importlib.util
import os
import re
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

T = TypeVar("T")

#: Teaches torch what shapes its operations give, for tensors without data: those of torch.compile. It takes a quarter
#: of `import torch` (0.3 of 1.3 s of CPU, torch 2.13), and a training that is captured in a CUDA graph never asks.
META = "torch._meta_registrations"
#: What asks for it, so that it must be there before.
ASKS = ("torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd")

_reading: dict[Path, Future[Any]] = {}
_postponed: list[Postponed] = []


def begin(read: tuple[Callable[[Path], Any], Path] | None = None, *, postpone: bool = True) -> None:
    """Begin what need not wait for torch: the GPU's context, and the data. Call ``imported`` after the imports.

    Args:
        read: what reads a folder, and the folder, for ``read_ahead``.
        postpone: leave out of `import torch` what only torch.compile needs, until it is used.
    """
    gc.disable()  # what is imported stays: looking for garbage in it takes a sixth of the imports' time
    if torch_cuda() is not None:
        threading.Thread(target=open_context, daemon=True).start()
    if read is not None:
        reader, folder = read
        threads = ThreadPoolExecutor(1)
        _reading[folder] = threads.submit(reader, folder)
        threads.shutdown(wait=False)
    if postpone and "torch" not in sys.modules:
        _postponed.append(Postponed())
        sys.meta_path.insert(0, _postponed[-1])


def imported() -> None:
    """The imports are done: garbage is collected again, though never looked for in what was imported."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
    for each in _postponed:
        each.settle()


def read_ahead(reader: Callable[[Path], T], folder: Path) -> T:
    """What ``begin`` has read of this folder, else what ``reader`` reads now. Raises what it raises."""
    reading = _reading.pop(folder, None)
    if reading is None or reading.exception() is not None:
        return reader(folder)
    result: T = reading.result()
    return result


def torch_cuda() -> int | None:
    """The major version of CUDA that the installed torch is built for, read from its files; None: for the CPU."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    try:
        text = Path(found.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    told = re.search(r"^cuda[^=\n]*= '(\d+)\.", text, re.MULTILINE)
    return int(told[1]) if told else None


def open_context() -> bool:
    """Make the context of this rank's GPU, by the driver alone: torch takes what is there. False where none can be had;
    torch then says why."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    device, context = ctypes.c_int(), ctypes.c_void_p()
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    return bool(
        driver.cuInit(0) == 0
        and driver.cuDeviceGet(ctypes.byref(device), rank) == 0
        and driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    )


class Postponed(MetaPathFinder, Loader):
    """Puts an empty module in the place of META, and the real one before any of ASKS, or when it is used itself."""

    def __init__(self) -> None:
        self._stands_in: ModuleType | None = None
        self._asked = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The empty module's. Before one of ASKS comes the real one, which imports none of them; others find those."""
        if fullname == META:
            return ModuleSpec(fullname, self)
        if fullname in ASKS and self._stands_in is not None:
            self._asked = True
            self.settle()
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Nothing but a door to the real one."""

        def attribute(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            self._asked = True
            self.settle()
            return getattr(sys.modules[META], name)

        module.__getattr__ = attribute  # type: ignore[method-assign]
        self._stands_in = module

    def settle(self) -> None:
        """Import the real one, if anybody has asked; not within `import torch`, but from ``imported`` then."""
        if not self._asked or getattr(sys.modules["torch"].__spec__, "_initializing", False):
            return
        try:
            sys.meta_path.remove(self)
        except ValueError:  # another thread is at it, or was
            return
        if sys.modules.get(META) is self._stands_in:
            del sys.modules[META]
            importlib.import_module(META)
