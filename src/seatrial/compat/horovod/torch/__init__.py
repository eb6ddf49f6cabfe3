"""``horovod.torch`` on torch.distributed: the same names, the same results, none of Horovod's code."""

from typing import Any

from .compression import Compression as Compression
from .functions import allgather_object as allgather_object
from .functions import broadcast_object as broadcast_object
from .functions import broadcast_optimizer_state as broadcast_optimizer_state
from .functions import broadcast_parameters as broadcast_parameters
from .mpi_ops import *  # noqa: F403
from .optimizer import DistributedOptimizer as DistributedOptimizer
from .sync_batch_norm import SyncBatchNorm as SyncBatchNorm
from .world import set_variables

set_variables()


def __getattr__(name: str) -> Any:
    """``hvd.elastic``, which scripts name without importing it."""
    if name == "elastic":
        from . import elastic

        return elastic
    raise AttributeError("module 'horovod.torch' has no attribute %r; it is seatrial's stand-in" % name)
