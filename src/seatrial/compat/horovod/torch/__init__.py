"""``horovod.torch`` on torch.distributed: the same names, the same results, none of Horovod's code."""

from typing import Any

from ..refused import refuse_elastic
from .compression import Compression as Compression
from .functions import allgather_object as allgather_object
from .functions import broadcast_object as broadcast_object
from .functions import broadcast_optimizer_state as broadcast_optimizer_state
from .functions import broadcast_parameters as broadcast_parameters
from .mpi_ops import Adasum as Adasum
from .mpi_ops import Average as Average
from .mpi_ops import HorovodInternalError as HorovodInternalError
from .mpi_ops import Max as Max
from .mpi_ops import Min as Min
from .mpi_ops import ProcessSet as ProcessSet
from .mpi_ops import Product as Product
from .mpi_ops import Sum as Sum
from .mpi_ops import add_process_set as add_process_set
from .mpi_ops import allgather as allgather
from .mpi_ops import allgather_async as allgather_async
from .mpi_ops import allreduce as allreduce
from .mpi_ops import allreduce_ as allreduce_
from .mpi_ops import allreduce_async as allreduce_async
from .mpi_ops import allreduce_async_ as allreduce_async_
from .mpi_ops import alltoall as alltoall
from .mpi_ops import alltoall_async as alltoall_async
from .mpi_ops import barrier as barrier
from .mpi_ops import broadcast as broadcast
from .mpi_ops import broadcast_ as broadcast_
from .mpi_ops import broadcast_async as broadcast_async
from .mpi_ops import broadcast_async_ as broadcast_async_
from .mpi_ops import ccl_built as ccl_built
from .mpi_ops import cross_rank as cross_rank
from .mpi_ops import cross_size as cross_size
from .mpi_ops import cuda_built as cuda_built
from .mpi_ops import ddl_built as ddl_built
from .mpi_ops import global_process_set as global_process_set
from .mpi_ops import gloo_built as gloo_built
from .mpi_ops import gloo_enabled as gloo_enabled
from .mpi_ops import grouped_allgather as grouped_allgather
from .mpi_ops import grouped_allgather_async as grouped_allgather_async
from .mpi_ops import grouped_allreduce as grouped_allreduce
from .mpi_ops import grouped_allreduce_ as grouped_allreduce_
from .mpi_ops import grouped_allreduce_async as grouped_allreduce_async
from .mpi_ops import grouped_allreduce_async_ as grouped_allreduce_async_
from .mpi_ops import grouped_reducescatter as grouped_reducescatter
from .mpi_ops import grouped_reducescatter_async as grouped_reducescatter_async
from .mpi_ops import init as init
from .mpi_ops import is_homogeneous as is_homogeneous
from .mpi_ops import is_initialized as is_initialized
from .mpi_ops import join as join
from .mpi_ops import local_rank as local_rank
from .mpi_ops import local_size as local_size
from .mpi_ops import mpi_built as mpi_built
from .mpi_ops import mpi_enabled as mpi_enabled
from .mpi_ops import mpi_threads_supported as mpi_threads_supported
from .mpi_ops import nccl_built as nccl_built
from .mpi_ops import poll as poll
from .mpi_ops import rank as rank
from .mpi_ops import reducescatter as reducescatter
from .mpi_ops import reducescatter_async as reducescatter_async
from .mpi_ops import remove_process_set as remove_process_set
from .mpi_ops import rocm_built as rocm_built
from .mpi_ops import shutdown as shutdown
from .mpi_ops import size as size
from .mpi_ops import sparse_allreduce_async as sparse_allreduce_async
from .mpi_ops import start_timeline as start_timeline
from .mpi_ops import stop_timeline as stop_timeline
from .mpi_ops import synchronize as synchronize
from .optimizer import DistributedOptimizer as DistributedOptimizer
from .sync_batch_norm import SyncBatchNorm as SyncBatchNorm
from .world import set_variables

set_variables()


def __getattr__(name: str) -> Any:
    """``hvd.elastic``, which scripts name without importing it."""
    if name == "elastic":
        refuse_elastic()
    raise AttributeError("module 'horovod.torch' has no attribute %r; it is seatrial's stand-in" % name)
