"""Becomes sitecustomize.py for the target: each framework gets what the run wants of it, once the script imports it.

It must never be noticed: an error in here ends what it does, not the script, and the evidence says so.
"""

import importlib
import importlib.abc
import importlib.util
import os
import sys
from typing import Any, Callable, Dict, List, Set

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = "seatrial_hook"


def limit_torch(torch: Any) -> None:
    part("memory_limit").limit_torch(torch)


def limit_tensorflow(tensorflow: Any) -> None:
    part("limit_tensorflow").begin(tensorflow)


def limit_jax(xla_client: Any) -> None:
    part("limit_jax").begin(xla_client)


def join_jax(distributed: Any) -> None:
    part("join_jax").begin(distributed)


def measure_torch(torch: Any) -> None:
    part("measure_torch").begin(torch)


def let_dynamo_pass(dynamo: Any) -> None:
    part("measure_torch").let_dynamo_pass(dynamo)


def part(name: str) -> Any:
    """A module of the package beside this file, which is on no path that the script sees."""
    if PACKAGE not in sys.modules:
        folder = os.path.join(HERE, PACKAGE)
        spec: Any = importlib.util.spec_from_file_location(
            PACKAGE, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
        )
        sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[PACKAGE])
    return importlib.import_module(PACKAGE + "." + name)


def wanted() -> Dict[str, List[Callable[[Any], None]]]:
    """Name of a module → what is done once it has been imported."""
    found: Dict[str, List[Callable[[Any], None]]] = {}
    if "SEATRIAL_GPU_MEMORY_BYTES" in os.environ:
        found = {"torch": [limit_torch], "tensorflow": [limit_tensorflow], "jaxlib.xla_client": [limit_jax]}
    if os.environ.get("SEATRIAL_MEASURE_STEPS") == "1":
        found.setdefault("torch", []).append(measure_torch)
        found["torch._dynamo.eval_frame"] = [let_dynamo_pass]
    if "JAX_PROCESS_ID" in os.environ:
        found["jax._src.distributed"] = [join_jax]
    return found


class Finder(importlib.abc.MetaPathFinder):
    """Lets the other finders find a module, and calls what is wanted of it behind the module's own code."""

    def __init__(self, hooks: Dict[str, List[Callable[[Any], None]]]) -> None:
        self.hooks = hooks
        self.looking_for: Set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self.hooks or name in self.looking_for:
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
                for hook in self.hooks[name]:
                    hook(module)

            loader.exec_module = exec_module  # of this one instance: its type, which frameworks look at, stays
        return spec


def load_users_own() -> None:
    """Run the sitecustomize that this one hides, if there is one."""
    ours = sys.modules.pop("sitecustomize")
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != HERE]
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = ours  # Python's own import still looks for it there


sys.meta_path.insert(0, Finder(wanted()))
load_users_own()
