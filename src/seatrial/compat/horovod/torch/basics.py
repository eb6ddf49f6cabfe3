"""Beginning and end, this rank among the others, and what this package is made with."""

from typing import Any, Optional, Sequence

import torch
import torch.distributed as dist

from ..refused import refuse
from . import joining, world
from .operations import join_others, wait_for_all
from .process_sets import ProcessSet, add_process_set, forget_process_sets, global_process_set


def init(comm: Any = None, process_sets: Optional[Sequence[ProcessSet]] = None) -> None:
    """Join the other ranks. ``comm``, a part of the ranks or a communicator of MPI's, is refused."""
    if comm:
        refuse("hvd.init(comm=…)", "hvd.add_process_set for a part of the ranks: seatrial run --gpus 2 train.py")
    if world.connect():
        joining.begin()
    if process_sets and not isinstance(process_sets, str):  # "dynamic": they always are
        for each in process_sets:
            add_process_set(each)


def shutdown() -> None:
    """Leave the others."""
    forget_process_sets()
    world.disconnect()


def rank() -> int:
    return world.world().rank


def size() -> int:
    return world.world().size


def local_rank() -> int:
    return world.world().local_rank


def local_size() -> int:
    return world.world().local_size


def cross_rank() -> int:
    return world.world().cross_rank


def cross_size() -> int:
    return world.world().cross_size


def is_homogeneous() -> bool:
    """torchrun starts equally many ranks on each node."""
    return True


def join(device: int = -1) -> int:
    """This rank has no data left: take part with zeros until all say so. The number of the last that did."""
    return join_others()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    wait_for_all(process_set)


def mpi_built() -> bool:
    return False


def mpi_enabled() -> bool:
    return False


def mpi_threads_supported() -> bool:
    return False


def gloo_built() -> bool:
    return bool(getattr(dist, "is_gloo_available", lambda: True)())


def gloo_enabled() -> bool:
    return gloo_built()


def nccl_built() -> bool:
    return bool(torch.version.cuda) and dist.is_nccl_available()


def ddl_built() -> bool:
    return False


def ccl_built() -> bool:
    return False


def cuda_built() -> bool:
    return bool(torch.version.cuda)


def rocm_built() -> bool:
    return bool(getattr(torch.version, "hip", None))


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Horovod's timeline is not here."""
    refuse("hvd.start_timeline", "torch.profiler, or what the receipt measures: seatrial run --gpus 2 train.py")


def stop_timeline() -> None:
    refuse("hvd.stop_timeline", "torch.profiler, or what the receipt measures: seatrial run --gpus 2 train.py")
