"""Provide ``horovod.torch`` on torch.distributed: what training scripts use, none of Horovod's code."""

import sys
from typing import Any, Callable

from .. import refuse
from .operations import *  # noqa: F403
from .optimizer import DistributedOptimizer as DistributedOptimizer
from .world import *  # noqa: F403
from .world import set_variables

set_variables()

#: Modules of Horovod's from which scripts import the same names.
for _name in ("mpi_ops", "functions", "compression"):
    sys.modules["%s.%s" % (__name__, _name)] = sys.modules[__name__]

#: Replacement → missing functions. Scripts may name them; a call is refused.
_MISSING = {
    "torch.distributed.new_group for a part of the ranks": "ProcessSet add_process_set remove_process_set",
    "torch.distributed.all_to_all_single": "alltoall alltoall_async",
    "torch.distributed.algorithms.Join, or as many batches on each rank": "join",
    "the same operation for each tensor": "grouped_allgather grouped_allgather_async grouped_allreduce "
    "grouped_allreduce_ grouped_allreduce_async grouped_allreduce_async_ grouped_reducescatter "
    "grouped_reducescatter_async",
    "torch.distributed.reduce_scatter_tensor": "reducescatter reducescatter_async",
    "dense gradients: nn.Embedding(…, sparse=False)": "sparse_allreduce_async",
    "torch.profiler, or the measurements of the receipt": "start_timeline stop_timeline",
}


def _refusing(name: str, instead: str) -> Callable[..., Any]:
    return lambda *args, **kwargs: refuse("hvd." + name, instead + ": seatrial run --gpus 2 train.py")


for _instead, _names in _MISSING.items():
    for _name in _names.split():
        globals()[_name] = _refusing(_name, _instead)


def __getattr__(name: str) -> Any:
    """Refuse ``hvd.elastic``, which scripts name without importing it."""
    if name == "elastic":
        refuse("horovod.torch.elastic")
    raise AttributeError("module 'horovod.torch' has no attribute %r; it is seatrial's stand-in" % name)
