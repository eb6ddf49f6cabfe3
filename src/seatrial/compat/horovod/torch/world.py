"""Who takes part: ranks, as torchrun numbers them, and the process groups through which they speak.

There are two groups of the same ranks: Gloo for tensors on the CPU, and NCCL for those on GPUs. The second is made with
the first such tensor, since a script may choose its GPU through CUDA_VISIBLE_DEVICES after ``init``.
"""

import atexit
import importlib
import os
import sys
from datetime import timedelta
from typing import Any, Dict, List, Optional, Sequence

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

#: Horovod waits for a rank as long as it takes, be it one that evaluates alone; torchrun notices those that died.
_PATIENCE = timedelta(hours=6)

#: What horovodrun sets and scripts read. Source: horovod/runner/gloo_run.py on GitHub.
_VARIABLES = {
    "HOROVOD_RANK": "rank",
    "HOROVOD_SIZE": "size",
    "HOROVOD_LOCAL_RANK": "local_rank",
    "HOROVOD_LOCAL_SIZE": "local_size",
    "HOROVOD_CROSS_RANK": "cross_rank",
    "HOROVOD_CROSS_SIZE": "cross_size",
}


class World:
    """This process among the others. Alone it needs no process group."""

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
        """Join the others. One that has been joined already is used as it is."""
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
        self.groups["cpu"] = _group("gloo", list(range(self.size)))

    def group(self, kind: str) -> Any:
        """Of all ranks, for tensors of ``cpu`` or ``cuda``."""
        if kind not in self.groups:
            self.groups[kind] = _group("nccl", list(range(self.size)))
        return self.groups[kind]

    def disconnect(self) -> None:
        if self.owns_process_group and dist.is_initialized():
            dist.destroy_process_group()


_met: Optional[Any] = None
_inits = 0


def _next_store(rank: int, size: int) -> Any:
    """For this ``init``, a part of the store that the ranks met in at the first.

    It outlives ``shutdown``: a rank that calls ``init`` again early would else meet the others in a store that is
    about to be closed.
    """
    global _met, _inits
    if _met is None:
        _met, _, _ = next(rendezvous("env://", rank, size, timeout=_PATIENCE))
        _met.set_timeout(_PATIENCE)
    _inits += 1
    return dist.PrefixStore("horovod-%d" % _inits, _met)  # type: ignore[attr-defined]


def _group(backend: str, ranks: List[int]) -> Any:
    if len(ranks) == dist.get_world_size() and dist.get_backend() == backend:
        return dist.group.WORLD
    return dist.new_group(ranks, timeout=_PATIENCE, backend=backend)


def group_of_some(kind: str, ranks: Sequence[int]) -> Any:
    """A process group of some ranks; all ranks of the world make it together."""
    return dist.new_group(list(ranks), timeout=_PATIENCE, backend="nccl" if kind == "cuda" else "gloo")


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() else default


_world: Optional[World] = None


def world() -> World:
    """Raises ValueError before ``init``."""
    if _world is None:
        raise ValueError("hvd.init() has not been called")
    return _world


def connect() -> bool:
    """Whether this call was the one that did it."""
    global _world
    if _world is not None:
        return False
    made = World()
    made.connect()
    _world = made
    if made.rank == 0:
        _say(made)
    return True


def disconnect() -> None:
    global _world
    if _world is not None:
        _world.disconnect()
    _world = None


def is_initialized() -> bool:
    return _world is not None


def set_variables() -> None:
    """For scripts that read Horovod's variables in place of asking."""
    here = World()
    for variable, name in _VARIABLES.items():
        os.environ.setdefault(variable, str(getattr(here, name)))


def _say(here: World) -> None:
    ranks = "%d rank%s" % (here.size, "" if here.size == 1 else "s")
    print(
        "seatrial: Horovod is not installed; horovod.torch is seatrial's stand-in on torch.distributed (%s, torch %s)"
        % (ranks, torch.__version__),
        file=sys.stderr,
        flush=True,
    )


@atexit.register
def _at_exit() -> None:
    """A rank that failed leaves at once: the others' operations would keep it waiting."""
    if getattr(sys, "last_type", None) is None:
        disconnect()
