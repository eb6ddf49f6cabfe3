"""The agent's part of plan.json, read with the standard library; ``seatrial.job.plan.AgentPlan`` documents the keys."""

import json
from typing import Any, Dict, List, NamedTuple, Optional


class Gpu(NamedTuple):
    """An expected GPU or MIG slice. ``minor`` is N of /dev/nvidiaN, or None."""

    uuid: str
    name: str
    minor: Optional[int] = None


class Plan(NamedTuple):
    """See AgentPlan, key by key."""

    run_id: str
    argv: List[str]
    workdir: str
    run_dir: str
    script: Optional[int] = None
    launcher: str = "none"
    processes: int = 1
    env: Dict[str, str] = {}  # noqa: RUF012
    secrets: List[str] = []  # noqa: RUF012
    secrets_dir: Optional[str] = None
    gpu_mode: str = "none"
    gpus: List[Gpu] = []  # noqa: RUF012
    check: str = "none"
    gpu_memory_bytes: Optional[int] = None
    sample_interval_s: float = 1.0
    grace_s: float = 30.0
    timeout_s: Optional[float] = None
    interactive: bool = False
    host_sampled: bool = False


def read(path: str) -> Plan:
    """The key ``agent`` of a plan.json. Raises OSError or ValueError."""
    with open(path, encoding="utf-8") as file:
        keys: Dict[str, Any] = json.load(file)["agent"]
    keys["gpus"] = [Gpu(gpu["uuid"], gpu["name"], gpu.get("minor")) for gpu in keys.get("gpus", [])]
    return Plan(**{key: value for key, value in keys.items() if key in Plan._fields})
