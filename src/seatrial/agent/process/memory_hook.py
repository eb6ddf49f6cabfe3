"""Becomes sitecustomize.py for the target when the run has --gpu-memory: each framework gets the limit once imported.

The limit holds for the framework's allocator in each process; the CUDA context's own memory (about 0.5 GB) is on top.
Runs in the target's Python, whichever that is, so it imports nothing of ours.
"""

import importlib
import importlib.abc
import importlib.util
import os
import sys
from typing import Any, Set


def limit_torch(torch: Any) -> None:
    """Queue the limit for when the script starts CUDA: setting it now would start CUDA, and break later forks."""
    torch.cuda._lazy_call(lambda: set_torch_fractions(torch))


def set_torch_fractions(torch: Any) -> None:
    """The allocator takes a fraction of each device's memory. A rank touches its own device only: setting it makes a
    context there."""
    rank = os.environ.get("LOCAL_RANK")
    for index in range(torch.cuda.device_count()) if rank is None else [int(rank)]:
        total_bytes = torch.cuda.get_device_properties(index).total_memory
        with torch.cuda.device(index):  # setting the fraction changes the current device
            torch.cuda.set_per_process_memory_fraction(min(1.0, LIMIT_BYTES / total_bytes), index)


def limit_tensorflow(tensorflow: Any) -> None:
    """Source: https://www.tensorflow.org/guide/gpu#limiting_gpu_memory_growth"""
    config = tensorflow.config
    for gpu in config.list_physical_devices("GPU"):
        limit = config.LogicalDeviceConfiguration(memory_limit=LIMIT_BYTES // 2**20)
        config.set_logical_device_configuration(gpu, [limit])


HOOKS = {"torch": limit_torch, "tensorflow": limit_tensorflow}


class Finder(importlib.abc.MetaPathFinder):
    """Lets the other finders find the framework, and calls its hook behind the module's own code."""

    def __init__(self) -> None:
        self.looking_for: Set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in HOOKS or name in self.looking_for:
            return None
        self.looking_for.add(name)  # find_spec below asks this finder again
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.looking_for.discard(name)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            run_module = loader.exec_module

            def exec_module(module: Any) -> None:
                run_module(module)
                HOOKS[name](module)

            loader.exec_module = exec_module  # of this one instance: its type, which frameworks look at, stays
        return spec


def load_users_own() -> None:
    """Run the sitecustomize that this one hides, if there is one."""
    here = os.path.dirname(os.path.abspath(__file__))
    ours = sys.modules.pop("sitecustomize")
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != here]
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = ours  # Python's own import still looks for it there


LIMIT_BYTES = int(os.environ["SEATRIAL_GPU_MEMORY_BYTES"])
sys.meta_path.insert(0, Finder())
load_users_own()
