"""Define the agent's part of plan.json: the host writes it, the agent reads it."""

from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple


class Terminal(NamedTuple):
    """The caller's terminal, after which the target's own are made.

    Attributes:
        streams: which of stdin (0), stdout (1) and stderr (2) are terminals.
        term, colors: $TERM and $COLORTERM.
    """

    columns: int
    lines: int
    streams: Tuple[int, ...]
    term: Optional[str] = None
    colors: Optional[str] = None


class AgentPlan(NamedTuple):
    """The agent's orders; every path is as seen from inside the container.

    No dataclass: importing those costs 6 to 8 ms.

    Attributes:
        argv: the target, ENTRYPOINT in front, launcher not yet.
        run_dir: the target's own folder of this run: its checkpoints, reports and other files.
        evidence_dir: where the agent writes evidence and logs; None: to its stdout, as frames (seatrial.frames).
        script: index in ``argv`` where the target's own command begins behind ``python`` (torchrun replaces what
            is before it), or None if the command is not a Python program that we may relaunch.
        launcher: ``torchrun`` or ``none``; already decided.
        processes: ranks that torchrun starts on each node; 1 otherwise.
        nodes: machines or pods that train together; min_nodes: torchrun goes on with so few, None: needs all.
        node_rank: this machine's number, or None if ``node_rank_variable`` of the environment has it.
        rendezvous: ``HOST:PORT`` where torchrun's processes meet over c10d; ``$NAME`` is taken from the environment.
        rendezvous_id: what the nodes of one run have in common; None: the run's ID.
        workers: ``HOST:PORT`` of each node's one process, for TF_CONFIG and JAX's coordinator; () under torchrun.
        restarts: how often the ranks start again after one has failed, or a node was lost.
        env: set for the target on top of the container's environment.
        python_path: folders that the target's Python looks in after those of its own PYTHONPATH.
        secrets: names; values are files of that name in ``secrets_dir``, read and deleted at the start.
        gpu_mode: ``required`` (fail closed), ``none`` (CPU requested) or ``auto-cpu`` (auto found none).
        gpus: expected GPUs in CUDA order: the plan's on the host, ``agent.plan.Gpu`` in the agent.
        gpu_count: how many GPUs must be visible where nobody could know which; the agent then takes those.
        check: ``torch``, ``tensorflow``, ``jax`` (a kernel of that on each GPU), ``driver`` (a plain one), ``none``.
        gpu_memory_bytes: limit that an unmodified torch, TensorFlow or JAX script is held to, or None.
        stand_ins: packages that are placed next to a Python which lacks them (seatrial.compat), by name: ``horovod``.
        measure_steps: a hook in the target's Python measures the steps of a torch script (seatrial.agent.hook).
        tune: of ``seatrial tune``: fields of agent.tune.Spec; the driver runs in the script's place.
        changes: made to the script from outside, as docs/decisions.md, 0037 has them.
        hang_after_s: silence after which the watchdog speaks of a hang; None: never.
        alert_command: what the watchdog's findings are sent to, besides the events.
        interactive: a shell: checks run, then the target inherits the terminal.
        terminal: terminals of its own that the target gets, as the caller looks on; None: none.
        input: the named pipe with the caller's input (seatrial.frames); None if the caller has none.
        pod_restarts: in a pod of a cluster, how often another takes the place of one that was lost without a word; None
            elsewhere. A request to end that comes from outside does not end a pod's run (docs/decisions.md, 0031).
        unkept: folders whose files end with the container: results there are copied into ``run_dir``.
        filled: targets of mounts that hold files of others than the engine.
        mounts: target → device and inode of what the host opened as its source; None: any mount of its own. They are
            compared before anything is read or written there; {} where nothing is compared.
        injection: how GPUs get into the container, for the words of a finding; the agent takes it from the plan.
    """

    run_id: str
    argv: Tuple[str, ...]
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
    workers: Tuple[str, ...] = ()
    restarts: int = 0
    env: Dict[str, str] = {}  # noqa: RUF012
    python_path: Tuple[str, ...] = ()
    secrets: Tuple[str, ...] = ()
    secrets_dir: Optional[str] = None
    gpu_mode: str = "none"
    gpus: Tuple[Any, ...] = ()
    gpu_count: Optional[int] = None
    check: str = "none"
    gpu_memory_bytes: Optional[int] = None
    measure_steps: bool = False
    tune: Optional[Dict[str, Any]] = None
    changes: Optional[Dict[str, Any]] = None
    stand_ins: Tuple[str, ...] = ()
    sample_interval_s: float = 1.0
    grace_s: float = 30.0
    timeout_s: Optional[float] = None
    hang_after_s: Optional[float] = None
    alert_command: Optional[str] = None
    interactive: bool = False
    terminal: Optional[Terminal] = None
    input: Optional[str] = None
    pod_restarts: Optional[int] = None
    unkept: Tuple[str, ...] = ()
    filled: Tuple[str, ...] = ()
    mounts: Dict[str, Optional[List[int]]] = {}  # noqa: RUF012
    injection: Optional[str] = None


def known(keys: Dict[str, Any], fields: Iterable[str]) -> Dict[str, Any]:
    """Return the keys that this version knows, lists as tuples: another version's plan may have more or fewer."""
    values = {field: keys[field] for field in fields if field in keys}
    return {field: tuple(value) if isinstance(value, list) else value for field, value in values.items()}
