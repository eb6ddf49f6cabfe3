"""Provide ``horovod.torch`` on torch.distributed: the same names, the same results, none of Horovod's code."""

import sys
from typing import Any

from .. import refuse
from .ops import *  # noqa: F403
from .optimizer import DistributedOptimizer as DistributedOptimizer
from .state import allgather_object as allgather_object
from .state import broadcast_object as broadcast_object
from .state import broadcast_optimizer_state as broadcast_optimizer_state
from .state import broadcast_parameters as broadcast_parameters
from .sync_batch_norm import SyncBatchNorm as SyncBatchNorm
from .world import *  # noqa: F403
from .world import set_variables

set_variables()

#: Modules of Horovod's from which scripts import the same names.
for _name in ("mpi_ops", "functions", "compression"):
    sys.modules["%s.%s" % (__name__, _name)] = sys.modules[__name__]


def __getattr__(name: str) -> Any:
    """Refuse ``hvd.elastic``, which scripts name without importing it."""
    if name == "elastic":
        refuse("horovod.torch.elastic")
    raise AttributeError("module 'horovod.torch' has no attribute %r; it is seatrial's stand-in" % name)
