"""jax.distributed.initialize() without arguments, on several nodes: with what the agent's variables say.

JAX itself reads the address alone from its environment, and the rest from Slurm, Open MPI or a cluster's API. What the
script gives stays. Source: jax/_src/distributed.py of 0.10.2.
"""

import functools
import inspect
import os
from typing import Any

COUNT, NUMBER = "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"


def begin(distributed: Any) -> None:
    """Fill in what a call leaves open."""
    original = distributed.State.initialize
    signature = inspect.signature(original)

    @functools.wraps(original)
    def initialize(*arguments: Any, **named: Any) -> Any:
        count, number = os.environ.get(COUNT, ""), os.environ.get(NUMBER, "")
        if not (count.isdigit() and number.isdigit()):
            return original(*arguments, **named)
        call = signature.bind(*arguments, **named)
        given = call.arguments
        if given.get("num_processes") is None and given.get("process_id") is None:
            given.update(num_processes=int(count), process_id=int(number))
            # Slurm's variables would give this process the first GPU alone.
            if "cluster_detection_method" in signature.parameters and given.get("cluster_detection_method") is None:
                given["cluster_detection_method"] = "deactivate"
        return original(*call.args, **call.kwargs)

    distributed.State.initialize = initialize
