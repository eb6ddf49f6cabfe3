"""Provide ranks, as torchrun numbers them, and the process groups that exchange their tensors.

There are two groups of the same ranks: Gloo for tensors on the CPU, and NCCL for those on GPUs. The second is made with
the first such tensor, since a script may choose its GPU through CUDA_VISIBLE_DEVICES after ``init``.
"""

import atexit
import importlib
import os
import sys
from datetime import timedelta
from typing import Any, Callable, Dict, Optional

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

#: Numbers of a rank: Horovod's functions, and horovodrun's variables. Source: horovod/runner/gloo_run.py on GitHub.
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
        instead = "torch.distributed.new_group for a part of the ranks: seatrial run --gpus 2 train.py"
        refuse("hvd.init(comm=…)", instead)
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
    return lambda: int(getattr(world(), name))


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
