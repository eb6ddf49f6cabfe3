"""The target's environment: the container's, and what the plan, the secrets and the GPU contract add."""

import os
from typing import Dict, Mapping

from seatrial.agent.plan import Plan, events_file
from seatrial.agent.process import workers
from seatrial.events import EVENTS_VARIABLE

#: Marks every process of a run, whatever session or parent it moves to; the guard finds them by it.
RUN_VARIABLE = "SEATRIAL_RUN_ID"

#: What programs that draw for a terminal's width take in place of one: the size of a plain terminal.
NO_TERMINAL = {"COLUMNS": "80", "LINES": "24"}

#: Defaults of torchrun's arguments, which Kubeflow's operators put into their pods. Ours are on its command line, and
#: it warns of those that do not go with them. Sources: torch/distributed/argparse_util.py;
#: kubeflow/trainer v1.9 pkg/controller.v1/pytorch/envvar.go and elastic.go, v2.3 pkg/runtime/framework/plugins/torch.
OPERATORS_VARIABLES = (
    "PET_NNODES",
    "PET_NPROC_PER_NODE",
    "PET_NODE_RANK",
    "PET_MASTER_ADDR",
    "PET_MASTER_PORT",
    "PET_RDZV_BACKEND",
    "PET_RDZV_ENDPOINT",
    "PET_RDZV_ID",
    "PET_RDZV_CONF",
    "PET_STANDALONE",
    "PET_MAX_RESTARTS",
)


def target_environment(plan: Plan, base: Mapping[str, str], secrets: Mapping[str, str]) -> Dict[str, str]:
    """Variables for the target and for the checks that stand in for it."""
    env = dict(base)
    if plan.launcher == "torchrun":
        for name in OPERATORS_VARIABLES:
            env.pop(name, None)
    # A pipe makes Python keep output back in blocks: hours of silence, and the last lines lost with a kill.
    env.setdefault("PYTHONUNBUFFERED", "1")
    if plan.terminal is not None:
        for name, value in (("TERM", plan.terminal.term), ("COLORTERM", plan.terminal.colors)):
            if value:
                env.setdefault(name, value)
    else:
        for name, size in NO_TERMINAL.items():
            env.setdefault(name, size)
    env.update(workers.variables(plan))
    env.update(plan.env)
    env.update(secrets)
    if plan.python_path:
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [env.get("PYTHONPATH"), *plan.python_path]))
    env[EVENTS_VARIABLE] = events_file(plan)
    env[RUN_VARIABLE] = plan.run_id
    # CUDA numbers the fastest GPU first unless told; NVML, nvidia-smi and the plan go by PCI bus.
    env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if plan.gpu_mode != "required":
        # Empty is CUDA's own way to show no device. "-1" only works because it is no valid index, and scripts that
        # split and count the list, or convert it to device numbers, take it for one.
        env["CUDA_VISIBLE_DEVICES"] = ""
    return env
