"""Ranks, as torchrun numbers them, and the process groups through which they exchange tensors.

There are two groups of the same ranks: Gloo for tensors on the CPU, and NCCL for those on GPUs. The second is made with
the first such tensor, since a script may choose its GPU through CUDA_VISIBLE_DEVICES after ``init``.
"""

import atexit
import importlib
import os
import sys
from datetime import timedelta
from typing import Any, Dict, List, Optional, Sequence, Union

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from .. import refuse
from . import joining

__all__ = (
    *("ProcessSet", "add_process_set", "ccl_built", "cross_rank", "cross_size", "cuda_built", "ddl_built"),
    *("global_process_set", "gloo_built", "gloo_enabled", "init", "is_homogeneous", "is_initialized", "local_rank"),
    *("local_size", "mpi_built", "mpi_enabled", "mpi_threads_supported", "nccl_built", "rank", "remove_process_set"),
    *("rocm_built", "shutdown", "size", "start_timeline", "stop_timeline"),
)

#: Horovod waits for a rank without limit, for example for one that evaluates alone; torchrun notices dead ones.
_PATIENCE = timedelta(hours=6)

#: Variables that horovodrun sets and scripts read. Source: horovod/runner/gloo_run.py on GitHub.
_VARIABLES = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")

_PROFILER = "torch.profiler, or the measurements of the receipt: seatrial run --gpus 2 train.py"


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
        self.groups: Dict[str, Any] = {}

    def connect(self) -> None:
        """Join the others. A process group that exists already is used as it is."""
        if self.size == 1:
            return
        if not dist.is_initialized():
            # Optimizers import it (torch 2.13), and defaults of its functions are the process group of that moment: it
            # would outlive its end, and Gloo's threads abort a Python that ends before them.
            importlib.import_module("torch.distributed.nn")
            store = _next_store(self.rank, self.size)
            dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.size, timeout=_PATIENCE)
            self.owns_process_group = True
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.group("cpu")

    def group(self, kind: str) -> Any:
        """Return the group of all ranks for tensors on ``cpu`` or ``cuda``."""
        if kind not in self.groups:
            backend = "gloo" if kind == "cpu" else "nccl"
            whole = dist.get_backend() == backend
            self.groups[kind] = dist.group.WORLD if whole else dist.new_group(timeout=_PATIENCE, backend=backend)
        return self.groups[kind]


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() else default


_world: Optional[World] = None
_met: Optional[Any] = None
_inits = 0


def _next_store(rank: int, size: int) -> Any:
    """Return a part, for this ``init``, of the store that the ranks met in at the first.

    It outlives ``shutdown``: a rank that calls ``init`` again early would otherwise meet the others in a store that is
    about to be closed.
    """
    global _met, _inits
    if _met is None:
        _met, _, _ = next(rendezvous("env://", rank, size, timeout=_PATIENCE))
        _met.set_timeout(_PATIENCE)
    _inits += 1
    return dist.PrefixStore("horovod-%d" % _inits, _met)  # type: ignore[attr-defined]


def world() -> World:
    """Return the world. Raises ValueError before ``init``."""
    if _world is None:
        raise ValueError("hvd.init() has not been called")
    return _world


def init(comm: Any = None, process_sets: Optional[Sequence["ProcessSet"]] = None) -> None:
    """Join the other ranks. ``comm``, a part of the ranks or a communicator of MPI's, is refused."""
    global _world
    if comm:
        refuse("hvd.init(comm=…)", "hvd.add_process_set for a part of the ranks: seatrial run --gpus 2 train.py")
    if _world is None:
        made = World()
        made.connect()
        _world = made
        if made.rank == 0:
            ranks = "%d rank%s" % (made.size, "" if made.size == 1 else "s")
            text = "horovod.torch is seatrial's stand-in on torch.distributed (%s, torch %s)" % (
                ranks,
                torch.__version__,
            )
            print("seatrial: Horovod is not installed; " + text, file=sys.stderr, flush=True)
        joining.begin(made)
    if process_sets and not isinstance(process_sets, str):  # "dynamic": they always are
        for each in process_sets:
            add_process_set(each)


def shutdown() -> None:
    """Leave the others."""
    global _world
    for each in _known[1:]:
        remove_process_set(each)
    if _world is not None and _world.owns_process_group and dist.is_initialized():
        dist.destroy_process_group()
    _world = None


@atexit.register
def _at_exit() -> None:
    """Leave, unless this rank failed: the others' operations would keep it waiting."""
    if getattr(sys, "last_type", None) is None:
        shutdown()


def set_variables() -> None:
    """Set Horovod's variables for scripts that read them."""
    here = World()
    for name in _VARIABLES:
        os.environ.setdefault("HOROVOD_" + name, str(getattr(here, name.lower())))


def is_initialized() -> bool:
    return _world is not None


def rank() -> int:
    return world().rank


def size() -> int:
    return world().size


def local_rank() -> int:
    return world().local_rank


def local_size() -> int:
    return world().local_size


def cross_rank() -> int:
    return world().cross_rank


def cross_size() -> int:
    return world().cross_size


def is_homogeneous() -> bool:
    """Return True: torchrun starts equally many ranks on each node."""
    return True


def mpi_built() -> bool:
    return False


mpi_enabled = mpi_threads_supported = ddl_built = ccl_built = mpi_built


def gloo_built() -> bool:
    return bool(getattr(dist, "is_gloo_available", lambda: True)())


gloo_enabled = gloo_built


def nccl_built() -> bool:
    return bool(torch.version.cuda) and dist.is_nccl_available()


def cuda_built() -> bool:
    return bool(torch.version.cuda)


def rocm_built() -> bool:
    return bool(getattr(torch.version, "hip", None))


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Raise NotInStandIn."""
    refuse("hvd.start_timeline", _PROFILER)


def stop_timeline() -> None:
    """Raise NotInStandIn."""
    refuse("hvd.stop_timeline", _PROFILER)


class ProcessSet:
    """Some ranks, by their numbers in the world. All ranks register it together, with ``add_process_set``.

    Attributes:
        ranks: sorted; None for the global set, which has all.
        process_set_id: None until it is registered; 0 is the global set.
    """

    def __init__(self, ranks: Optional[Sequence[int]]) -> None:
        self.ranks: Optional[List[int]] = None if ranks is None else sorted(ranks)
        self.process_set_id: Optional[int] = None
        self._groups: Dict[str, Any] = {}

    def size(self) -> Optional[int]:
        return len(self._members()) if self.process_set_id is not None else None

    def rank(self) -> Optional[int]:
        """Return this process's number in the set, or None if it is not in the set."""
        return self._members().index(world().rank) if self.included() else None

    def included(self) -> bool:
        return world().rank in self._members()

    def group(self, tensor: torch.Tensor) -> Any:
        """Return the process group for such a tensor. Raises ValueError if unregistered or without this rank."""
        if self.process_set_id is None:
            raise ValueError("%s is not known yet: hvd.add_process_set makes it so, on all ranks" % self)
        if not self.included():
            raise ValueError("rank %d is not in %s" % (world().rank, self))
        kind = "cuda" if tensor.is_cuda else "cpu"
        return self._groups[kind] if self.process_set_id else world().group(kind)

    def begin(self, number: int) -> None:
        """Make its groups; all ranks take part."""
        self.process_set_id = number
        if world().size > 1:
            self._groups["cpu"] = dist.new_group(self.ranks, timeout=_PATIENCE, backend="gloo")
            if dist.is_nccl_available() and torch.cuda.is_available():
                self._groups["cuda"] = dist.new_group(self.ranks, timeout=_PATIENCE, backend="nccl")

    def _members(self) -> List[int]:
        return list(range(world().size)) if self.ranks is None else self.ranks

    def __str__(self) -> str:
        return "ProcessSet(process_set_id=%s, ranks=%s)" % (self.process_set_id, self.ranks)


global_process_set = ProcessSet(None)
global_process_set.process_set_id = 0
_known: List[ProcessSet] = [global_process_set]


def add_process_set(process_set: Union[ProcessSet, Sequence[int]]) -> ProcessSet:
    """Register a set; every rank calls it, with the same ranks. Raises ValueError for ranks that do not exist."""
    made = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    members = made.ranks or []
    if not members or members[0] < 0 or members[-1] >= world().size or len(set(members)) < len(members):
        raise ValueError("%s names ranks that are not among the %d there are" % (made, world().size))
    if any(each.ranks == members for each in _known):
        raise ValueError("there is a process set of ranks %s already" % members)
    made.begin(max(each.process_set_id or 0 for each in _known) + 1)
    _known.append(made)
    return made


def remove_process_set(process_set: ProcessSet) -> bool:
    """Return True if the set was registered. The global set stays."""
    if process_set is global_process_set or process_set not in _known:
        return False
    _known.remove(process_set)
    process_set.process_set_id = None
    return True
