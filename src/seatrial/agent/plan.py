"""The agent's part of plan.json, read with the standard library; ``seatrial.job.plan.AgentPlan`` documents the keys."""

import json
import os
import stat
from typing import Any, Dict, Iterable, List, NamedTuple, Optional


class Gpu(NamedTuple):
    """An expected GPU or MIG slice. ``minor`` is N of /dev/nvidiaN, or None."""

    uuid: str
    name: str
    minor: Optional[int] = None
    compute_capability: Optional[str] = None


class Terminal(NamedTuple):
    """The caller's: ``streams`` are the numbers of the target's standard streams that are terminals."""

    columns: int
    lines: int
    streams: List[int]
    term: Optional[str] = None
    colors: Optional[str] = None


class Plan(NamedTuple):
    """See AgentPlan, key by key; ``injection`` is the plan's, for the words of a finding.

    ``alert_webhook`` names a secret in plan.json; ``__main__`` puts the URL in its place.
    """

    run_id: str
    argv: List[str]
    workdir: str
    run_dir: str
    evidence_dir: Optional[str] = None
    script: Optional[int] = None
    launcher: str = "none"
    processes: int = 1
    nodes: int = 1
    min_nodes: Optional[int] = None
    node_rank: Optional[int] = None
    node_rank_variable: Optional[str] = None
    rendezvous: Optional[str] = None
    rendezvous_id: Optional[str] = None
    workers: List[str] = []  # noqa: RUF012
    restarts: int = 0
    env: Dict[str, str] = {}  # noqa: RUF012
    python_path: List[str] = []  # noqa: RUF012
    secrets: List[str] = []  # noqa: RUF012
    secrets_dir: Optional[str] = None
    gpu_mode: str = "none"
    gpus: List[Gpu] = []  # noqa: RUF012
    gpu_count: Optional[int] = None
    check: str = "none"
    gpu_memory_bytes: Optional[int] = None
    measure_steps: bool = False
    tune: Optional[Dict[str, Any]] = None
    changes: Optional[Dict[str, Any]] = None
    stand_ins: List[str] = []  # noqa: RUF012
    sample_interval_s: float = 1.0
    grace_s: float = 30.0
    timeout_s: Optional[float] = None
    hang_after_s: Optional[float] = None
    alert_command: Optional[str] = None
    alert_webhook: Optional[str] = None
    interactive: bool = False
    terminal: Optional[Terminal] = None
    input: Optional[str] = None
    host_sampled: bool = False
    pod_restarts: Optional[int] = None
    unkept: List[str] = []  # noqa: RUF012
    injection: Optional[str] = None


def events_file(plan: Plan) -> str:
    """Where the target reports to: $SEATRIAL_EVENTS."""
    return os.path.join(plan.run_dir, "events.jsonl")


def read(path: str) -> Plan:
    """The agent's plan of a plan.json. Raises OSError, or ValueError, KeyError or TypeError for what is none."""
    with open(path, encoding="utf-8") as file:
        whole = json.load(file)
    keys: Dict[str, Any] = dict(whole["agent"], injection=whole.get("injection"))
    keys["gpus"] = [Gpu(**_known(gpu, Gpu._fields)) for gpu in keys.get("gpus", [])]
    terminal = keys.get("terminal")
    keys["terminal"] = Terminal(**_known(terminal, Terminal._fields)) if terminal else None
    return _placed(Plan(**_known(keys, Plan._fields)))


def _placed(plan: Plan) -> Plan:
    """The plan with this node's rank, and a folder of its own for its target where several share one.

    Raises ValueError when the variable that should tell the rank does not.
    """
    if plan.nodes == 1:
        return plan._replace(node_rank=0)
    if plan.node_rank is not None:  # a machine of its own, with a run folder of its own
        return plan
    told = os.environ.get(plan.node_rank_variable or "", "")
    if not told.isdigit():
        raise ValueError("%s does not give this node's rank: %r" % (plan.node_rank_variable, told))
    rank = int(told)
    folder = os.path.join(plan.run_dir, "nodes", str(rank))
    make_folder(folder)
    rendezvous = os.path.expandvars(plan.rendezvous) if plan.rendezvous else None
    return plan._replace(node_rank=rank, run_dir=folder, rendezvous=rendezvous)


def make_folder(path: str) -> None:
    """A folder on what may be a volume that several users share: like those that a kubelet makes for a subPath, it has
    the mode of the one above, so that the next user's run can make its own beside it.

    Raises OSError.
    """
    if os.path.isdir(path):
        return
    above = os.path.dirname(os.path.abspath(path))
    make_folder(above)
    try:
        os.mkdir(path)
        os.chmod(path, stat.S_IMODE(os.stat(above).st_mode))
    except FileExistsError:  # another node's agent was quicker
        pass


def _known(keys: Dict[str, Any], fields: Iterable[str]) -> Dict[str, Any]:
    return {field: keys[field] for field in fields if field in keys}
