"""One process on each of several nodes: how TensorFlow and JAX are told who the others are.

Sources: https://www.tensorflow.org/guide/distributed_training#TF_CONFIG; jax/_src/distributed.py, which reads the
address from JAX_COORDINATOR_ADDRESS. The other two are what many scripts read, and what the hook gives to a
jax.distributed.initialize() without arguments (agent/hook/join_jax.py).
"""

import json
from typing import Dict

from seatrial.agent.plan import Plan

#: Read by the hook, too.
ADDRESS, COUNT, NUMBER = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"


def variables(plan: Plan) -> Dict[str, str]:
    """TF_CONFIG and JAX's; {} on one node, and where another launcher tells the ranks."""
    if not plan.workers or plan.node_rank is None:
        return {}
    task = {"type": "worker", "index": plan.node_rank}
    return {
        "TF_CONFIG": json.dumps({"cluster": {"worker": list(plan.workers)}, "task": task}),
        ADDRESS: plan.workers[0],
        COUNT: str(len(plan.workers)),
        NUMBER: str(plan.node_rank),
    }
