"""Become sitecustomize.py of the target: each framework gets its part of the hook once the script imports it.

The script must never notice it: an error in here ends the hook's work, not the script, and is in the evidence.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from _thread import _count as other_threads
from _thread import get_ident
from typing import Any, Dict, List, Sequence, Set, Tuple

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = "seatrial_hook"
FOLDER = PACKAGE + "_like_importlib_bootstrap"  # see install.py
#: Modules with the functions in which FSDP waits; see torch_distributed.py.
FSDP = (
    "torch.distributed.fsdp._runtime_utils",
    "torch.distributed.fsdp._fully_shard._fsdp_param_group",
    "torch.distributed._composable.fsdp._fsdp_param_group",
)
#: Modules of Keras 3, tf.keras 2 and TensorFlow in which a step can be seen; see other_frameworks.py.
KERAS = (
    "keras.src.callbacks",
    "keras.src.optimizers.base_optimizer",
    "keras.src.optimizers.optimizer",
    "tf_keras.src.callbacks",
    "tf_keras.src.optimizers.optimizer",
    "tensorflow.python.eager.polymorphic_function.polymorphic_function",
)


def part(name: str) -> Any:
    """Import a module of the package in this folder, which is on no path that the script sees."""
    if PACKAGE not in sys.modules:
        folder = os.path.join(HERE, FOLDER)
        spec: Any = importlib.util.spec_from_file_location(
            PACKAGE, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
        )
        sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[PACKAGE])
    return importlib.import_module(PACKAGE + "." + name)


def wanted() -> Dict[str, List[Tuple[str, str]]]:
    """Return module name → (part of the hook, its function that gets the module once it has been imported)."""
    found: Dict[str, List[Tuple[str, str]]] = {}

    def add(names: Sequence[str], part: str, function: str) -> None:
        for name in names:
            found.setdefault(name, []).append((part, function))

    if "SEATRIAL_GPU_MEMORY_BYTES" in os.environ:
        add(["torch"], "memory_limit", "limit_torch")
        add(["tensorflow"], "memory_limit", "limit_tensorflow")
        add(["jaxlib.xla_client"], "memory_limit", "limit_jax")
    if os.environ.get("SEATRIAL_TUNE"):  # before torch is measured, so that the changed script is measured
        add(["torch"], "changes", "begin")
    if os.environ.get("SEATRIAL_MEASURE_STEPS") == "1":
        add(["torch"], "measure_torch", "begin")
        add(["torch._dynamo.eval_frame"], "measure_torch", "dynamo_is_here")
        add(["torch._dynamo.callback"], "measure_torch", "compiling_is_here")
        add(["safetensors.torch"], "measure_torch", "saving_is_here")
        add(FSDP, "measure_torch", "fsdp_is_here")
        add(KERAS, "other_frameworks", "keras_is_here")
        add(["jax._src.monitoring"], "other_frameworks", "jax_is_here")
        if os.environ.get("SEATRIAL_TRIAL"):
            add(["safetensors.torch"], "undo_journal", "skip_safetensors")
    if "JAX_PROCESS_ID" in os.environ:
        add(["jax._src.distributed"], "other_frameworks", "join_jax")
    return found


class Finder(importlib.abc.MetaPathFinder):
    """Lets the other finders find a module, and calls its hooks after the module's own code."""

    def __init__(self, hooks: Dict[str, List[Tuple[str, str]]]) -> None:
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
                for part_name, function in self.hooks[name]:
                    getattr(part(part_name), function)(module)

            loader.exec_module = exec_module  # of this one instance: its type, which frameworks look at, stays
        return spec


class StandIns(importlib.abc.MetaPathFinder):
    """Finds packages of ours that stand in for others, after all other finders have found nothing."""

    def __init__(self, names: List[str]) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self.names:
            return None
        return importlib.machinery.PathFinder.find_spec(name, [os.path.join(HERE, "stand_ins")])


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


#: Where Python finds this file. Processes inherit it with our folder; os.environ, which the script reads, hides that.
PATH = "PYTHONPATH"

#: The hook's variables: an environment without them was not made from this one, and the hook leaves it as it is.
OURS = ("SEATRIAL_MEASURE_STEPS", "SEATRIAL_GPU_MEMORY_BYTES", "SEATRIAL_STAND_INS", "SEATRIAL_TUNE")

#: Audit events that the hook handles: those of starts, and others.
STARTS = ("subprocess.Popen", "os.exec", "os.system")
EVENTS = (*STARTS, "sys.excepthook", "os.putenv", "os.unsetenv")

#: The thread that did so. ``set``: it has set PYTHONPATH, so processes would inherit it without our folder. ``shown``:
#: os.environ has our folder, because a process is being started with that very object.
STATE = {"set": 0, "shown": 0}


def show_folder(shown: bool) -> None:
    """Add our folder to PYTHONPATH in os.environ, or remove it; the inherited environment stays the same.

    The variable goes away only while no other thread can be reading one after the other.
    """
    variables: Any = os.environ
    folders = variables.get(PATH, HERE).split(os.pathsep)  # an empty one is the working directory
    path = os.pathsep.join(each for each in folders if each != HERE)
    path = with_folder(path) if shown else path
    if path:
        variables._data[variables.encodekey(PATH)] = variables.encodevalue(path)
    elif not other_threads():
        variables._data.pop(variables.encodekey(PATH), None)
    STATE["shown"] = get_ident() if shown else 0


def with_folder(path: Any) -> str:
    return os.pathsep.join([HERE, *filter(None, [path])])


def is_ours(env: Any) -> bool:
    """Return whether an environment is this process's, or was made from it."""
    return any(name in env for name in OURS)


def inherit_folder() -> None:
    """Put our folder back into what processes inherit, as the script has set the variable."""
    STATE["set"] = 0
    if is_ours(os.environ):
        os.putenv(PATH, with_folder(os.environ.get(PATH)))
        STATE["set"] = 0


def before_start(event: str, args: Any) -> None:
    """Pass our folder to a new process, whose sitecustomize hides it again."""
    env = None if event == "os.system" else args[3 if event == "subprocess.Popen" else 2]
    if env is None or not is_ours(env) or HERE in env.get(PATH, ""):
        return
    if event == "os.exec":  # its environment has already been read: make the call again
        os.execve(args[0], args[1], {**env, PATH: with_folder(env.get(PATH))})
    elif env is os.environ:
        show_folder(True)
    else:
        env[PATH] = with_folder(env.get(PATH))


def on_audit_event(event: str, args: Any) -> None:
    """Pass the hook on to new processes, and remove its frames from an uncaught exception.

    Python announces an exception before it calls sys.excepthook, which stays. Source: PyErr_PrintEx, 3.8 to 3.14.
    """
    if event not in EVENTS and not STATE["set"] and not STATE["shown"]:
        return
    try:
        if STATE["shown"] == get_ident():
            show_folder(False)
        if event in ("os.putenv", "os.unsetenv"):
            STATE["set"] = get_ident() if os.fsdecode(args[0]) == PATH else STATE["set"]
        elif STATE["set"] == get_ident() or (STATE["set"] and event in STARTS):
            inherit_folder()
        if event == "sys.excepthook":
            without_frames(args[2])
        elif event in STARTS:
            before_start(event, args)
    except Exception:  # noqa: BLE001  the process then lacks the hook, or shows its frames
        pass


def without_frames(error: Any) -> None:
    """Remove the hook's frames from an exception and from its causes."""
    seen: Set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = outside(error.__traceback__)
        error = error.__cause__ or error.__context__


def outside(trace: Any) -> Any:
    """Return a traceback without frames of files in this folder; unchanged without such frames, or with no others."""
    entries = []
    while trace is not None:
        entries.append(trace)
        trace = trace.tb_next
    kept = [each for each in entries if not each.tb_frame.f_code.co_filename.startswith(HERE + os.sep)]
    if not kept or len(kept) == len(entries):
        return entries[0] if entries else None
    built = None
    for each in reversed(kept):
        built = type(each)(built, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return built


if hasattr(sys, "addaudithook"):
    sys.addaudithook(on_audit_event)
    show_folder(False)
sys.meta_path.insert(0, Finder(wanted()))
if os.environ.get("SEATRIAL_STAND_INS"):
    first = os.environ.get("SEATRIAL_STAND_INS_FIRST") == "1"
    sys.meta_path.insert(0 if first else len(sys.meta_path), StandIns(os.environ["SEATRIAL_STAND_INS"].split(",")))
load_users_own()
