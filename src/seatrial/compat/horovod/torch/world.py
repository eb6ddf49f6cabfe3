"""Provide ranks, as torchrun numbers them, the process groups that exchange their tensors, and ``hvd.join``.

There are two groups of the same ranks: Gloo for tensors on the CPU, and NCCL for those on GPUs. The second is made with
the first such tensor, since a script may choose its GPU through CUDA_VISIBLE_DEVICES after ``init``.

In ``hvd.join``, ranks without data left add neutral elements to the others' reductions. All ranks begin the same
operations in the same order, so each operation has a number. In a script that joins, each rank writes its n-th
operation to the store, and a joined rank reads the next one there. The last rank to join writes the end after the
operations of the furthest rank: NCCL lets a rank begin operations that the others have not reached.
"""

import atexit
import importlib
import json
import os
import re
import sys
import time
from datetime import timedelta
from typing import Any, Callable, Dict, Iterator, Optional

import torch
import torch.distributed as dist

from .. import refuse

__all__ = (
    *("ccl_built", "cross_rank", "cross_size", "cuda_built", "ddl_built", "gloo_built", "gloo_enabled", "init"),
    *("is_homogeneous", "is_initialized", "local_rank", "local_size", "mpi_built", "mpi_enabled"),
    *("mpi_threads_supported", "nccl_built", "rank", "rocm_built", "shutdown", "size"),
)

#: Horovod waits for a rank without limit, for example for one that evaluates alone; torchrun notices dead ones.
_PATIENCE = timedelta(hours=6)

#: Numbers of a rank: Horovod's functions, and variables that horovodrun sets and scripts read. Source:
#: horovod/runner/gloo_run.py on GitHub.
_NUMBERS = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")


class World:
    """This process among the ranks. A single one needs no process group."""

    def __init__(self) -> None:
        self.size = _number("WORLD_SIZE", 1)
        self.rank = _number("RANK", 0)
        self.local_size = _number("LOCAL_WORLD_SIZE", self.size)
        self.local_rank = _number("LOCAL_RANK", self.rank)
        self.cross_rank = _number("GROUP_RANK", self.rank // self.local_size)
        self.cross_size = _number("GROUP_WORLD_SIZE", max(1, self.size // self.local_size))
        self.owns_process_group = False
        self._groups: Dict[str, Any] = {}
        self.numbered: Any = None  # the operations of a script that joins, False if it does not; ends with the groups

    def connect(self) -> None:
        """Join the others. A process group that exists already is used as it is."""
        if self.size == 1:
            return
        if not dist.is_initialized():
            # Optimizers import it (torch 2.13), and defaults of its functions are the process group of that moment: it
            # would outlive its end, and Gloo's threads abort a Python that ends before them.
            importlib.import_module("torch.distributed.nn")
            dist.init_process_group("gloo", rank=self.rank, world_size=self.size, timeout=_PATIENCE)
            self.owns_process_group = True
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.group(torch.empty(0))

    def group(self, tensor: torch.Tensor) -> Any:
        """Return the group of all ranks for such tensors."""
        backend = "nccl" if tensor.is_cuda else "gloo"
        if backend not in self._groups:
            whole = dist.get_backend() == backend
            self._groups[backend] = dist.group.WORLD if whole else dist.new_group(timeout=_PATIENCE, backend=backend)
        return self._groups[backend]


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() else default


_world: Optional[World] = None
_left = False


def world() -> World:
    """Return the world. Raises ValueError before ``init``."""
    if _world is None:
        raise ValueError("hvd.init() has not been called")
    return _world


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Join the other ranks. Raises NotInStandIn for a part of them, and after ``shutdown``."""
    global _world
    if comm or process_sets:
        refuse(
            "hvd.init(comm=…)", "torch.distributed.new_group for a part of the ranks: seatrial run --gpus 2 train.py"
        )
    if _left:
        refuse("hvd.init() after hvd.shutdown()", "one hvd.init() for the whole script: seatrial run --gpus 2 train.py")
    if _world is None:
        made = World()
        made.connect()
        _world = made
        if made.rank == 0:
            ranks = "%d rank%s" % (made.size, "" if made.size == 1 else "s")
            text = "horovod.torch is seatrial's stand-in on torch.distributed (%s, torch %s)"
            text = "seatrial: Horovod is not installed; " + text % (ranks, torch.__version__)
            print(text, file=sys.stderr, flush=True)


def shutdown() -> None:
    """End the process groups with the other ranks."""
    global _world, _left
    if _world is not None and _world.owns_process_group and dist.is_initialized():
        dist.destroy_process_group()
        _left = True
    _world = None


@atexit.register
def _at_exit() -> None:
    """End the process groups, unless this rank failed: the others' operations would keep it waiting."""
    if getattr(sys, "last_type", None) is None:
        shutdown()


def set_variables() -> None:
    """Set Horovod's variables for scripts that read them."""
    here = World()
    for name in _NUMBERS:
        os.environ.setdefault("HOROVOD_" + name.upper(), str(getattr(here, name)))


def is_initialized() -> bool:
    return _world is not None


def _number_of(name: str) -> Callable[[], int]:
    def number() -> int:
        return int(getattr(world(), name))

    return number


rank, size, local_rank, local_size, cross_rank, cross_size = map(_number_of, _NUMBERS)


def _answering(built: bool) -> Callable[[], bool]:
    return lambda: built


#: torchrun starts the same number of ranks on each node.
is_homogeneous = _answering(True)
mpi_built = mpi_enabled = mpi_threads_supported = ddl_built = ccl_built = _answering(False)
gloo_built = gloo_enabled = _answering(bool(getattr(dist, "is_gloo_available", lambda: True)()))
cuda_built = _answering(bool(torch.version.cuda))
nccl_built = _answering(bool(torch.version.cuda) and dist.is_nccl_available())
rocm_built = _answering(bool(getattr(torch.version, "hip", None)))


#: A call of ``join`` whose first argument is not a list, as those of text and paths are.
_JOINS = re.compile(r"\bjoin\s*\(\s*(\)|device|-?\d|torch|hvd|args|local|rank)|import[^\n]*\bjoin\b")

#: Operations whose entries stay in the store; no rank lags that far.
_KEPT = 10_000

_PAUSE_S = 0.001

_TYPES = {str(each): each for each in vars(torch).values() if isinstance(each, torch.dtype)}


class Joining:
    """The numbered operations of one rank of ``size``."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._count = self._joins = 0

    def announce(self, kind: str, tensor: torch.Tensor) -> None:
        """Write this rank's next operation to the store, before it begins."""
        self._store.set(str(self._count), json.dumps([kind, [*tensor.shape], str(tensor.dtype), tensor.device.type]))
        if self._count >= _KEPT and self._rank == 0:
            self._store.delete_key(str(self._count - _KEPT))
        self._count += 1

    def join(self, take_part: Callable[[str, torch.Tensor], None]) -> int:
        """Take part in every operation until all ranks have joined; return the number of the last to do so."""
        self._joins += 1
        reached = "reached-%d-" % self._joins + "%d"
        self._store.set(reached % self._rank, str(self._count))
        if self._store.add("joined-%d" % self._joins, 1) == self._size:
            furthest = max(int(self._store.get(reached % rank)) for rank in range(self._size))
            self._store.set(str(furthest), json.dumps(["end", self._rank]))
        while True:
            kind, *rest = json.loads(self._wait_for(str(self._count)))
            self._count += 1
            if kind == "end":
                break
            shape, dtype, device = rest
            take_part(kind, torch.zeros(shape, dtype=_TYPES[dtype], device=device))
        left = "left-%d" % self._joins
        self._store.add(left, 1)
        # Rank 0 leaves last: the store ends with its process, and the others may not have read the end.
        while self._rank == 0 and self._store.add(left, 0) < self._size:
            time.sleep(_PAUSE_S)
        return int(rest[0])

    def _wait_for(self, key: str) -> Any:
        while not self._store.check([key]):
            time.sleep(_PAUSE_S)
        return self._store.get(key)


def joining_of_script() -> Optional[Joining]:
    """Return this rank's numbered operations, or None if the script calls no ``join``."""
    here = world()
    if here.numbered is None:
        here.numbered = here.size > 1 and any(_JOINS.search(text) for text in _sources())
        if here.numbered:
            store: Any = dist.distributed_c10d._get_default_store()
            store = dist.PrefixStore("horovod-operations", store)  # type: ignore[attr-defined]
            here.numbered = Joining(store, here.rank, here.size)
    return here.numbered or None


def _sources() -> Iterator[str]:
    """Yield the text of the script and of the modules in or below its folder."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    folder = os.path.dirname(os.path.abspath(script)) if script else os.getcwd()
    for module in list(sys.modules.values()):
        path = os.path.abspath(getattr(module, "__file__", None) or "")
        if path.endswith(".py") and path.startswith(folder + os.sep) and "-packages" not in path:
            try:
                with open(path, encoding="utf-8", errors="replace") as file:
                    yield file.read()
            except OSError:
                pass
