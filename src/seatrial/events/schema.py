"""The schema of events.jsonl: each kind of event is a class, and an object of it one event to be written.

Besides its own keys a line has ``t`` (Unix time in seconds), ``type``, ``source`` and ``_chain``. ``source`` is
``agent`` (in the container or outside the local process), ``host`` (the seatrial CLI) or ``target``. A target's lines
are its reports: it writes them to the file named in ``$SEATRIAL_EVENTS``, the agent passes them on, and they are
``step`` events whichever type they claim, or ``served``. ``_seq`` numbers the lines that an agent sent,
from 1 at its start; ``node`` names their sender in a run of several. ``_chain`` is the digest of this line and all
before it (EvidenceLog).

Readers skip what they do not know; writers never change the meaning of a key. A key with a default here is left out of
the line where the writer does not give it. docs/reference/generate.py makes the events page from these classes.
"""

import json
import pkgutil
from typing import TYPE_CHECKING, Any, Callable, ClassVar, Dict, List, Optional, Type

__all__ = [
    "EVIDENCE_TYPES", "GPU_SAMPLE_KEYS", "KINDS", "MODEL_SUFFIXES", "REPORT_TYPES", "AgentFinished", "AgentStarted",
    "AgentSummary", "Event", "FilesOutside", "Found", "GpuCheck", "GpuContext", "GpuKernel", "HostLaunched", "HostPod",
    "HostState", "HostWitness", "ModelsSaved", "Note", "ReportRefused", "ReportUnreadable", "Sample", "Served",
    "Signal", "Step", "TargetExited", "TargetStarted", "is_result", "never_started",
]  # fmt: skip

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:  # for type checkers alone, which then know each class's keys

    def dataclass_transform(**_: Any) -> Callable[[Any], Any]:
        return lambda decorated: decorated


#: Type, as it stands in a line → its class. Filled by the classes below.
KINDS: "Dict[str, Type[Event]]" = {}


@dataclass_transform(kw_only_default=True)
class Event:
    """One event, made with its keys as keywords; ``vars`` of it has them. Raises TypeError for one too many or too few.

    Neither a NamedTuple nor a dataclass: twenty of those cost every agent 5 ms of its start, these 1 ms.
    """

    type: ClassVar[str]

    def __init_subclass__(cls, type: str) -> None:
        cls.type = type
        KINDS[type] = cls

    def __init__(self, /, **keys: Any) -> None:
        known = self.__class__.__annotations__
        wrong = [key for key in keys if key not in known]
        wrong += [key for key in known if key not in keys and not hasattr(self.__class__, key)]
        if wrong:
            raise TypeError("%s cannot have, or has to have: %s" % (self.type, ", ".join(wrong)))
        self.__dict__.update(keys)


class AgentStarted(Event, type="agent.started"):
    """The agent has started, before anything else.

    alterable: why the target could alter the agent's evidence; null where it cannot.
    cgroup: `memory_limit_bytes` and `cpu_quota_cores`.
    unverified_mounts: why mounts could not be compared with what the host opened.
    """

    pid: int
    hostname: str
    python: str
    agent_version: str
    uid: int
    gid: int
    cgroup: Dict[str, Any]
    alterable: Optional[str]
    unverified_mounts: Optional[str] = None


class GpuCheck(Event, type="gpu.check"):
    """Hold what CUDA sees, looked at before the target starts.

    expected: UUIDs of the plan.
    visible: each with `uuid`, `name`, `index`, `compute_capability`, `memory_bytes`.
    ok: all that was expected is visible.
    """

    expected: List[str]
    visible: List[Dict[str, Any]]
    driver: Optional[str]
    cuda_driver: Optional[str]
    ok: bool
    error: Optional[str]


class GpuKernel(Event, type="gpu.kernel"):
    """A kernel was tried on a GPU.

    kind: `driver`, `torch`, `tensorflow` or `jax`: what launched it.
    ms: how long it took.
    torch: `version`, `cuda` and `arch_list` of the target's torch; null for the kernels of others.
    framework: `name`, `version`, `cuda` and, of TensorFlow, `cudnn` and `arch_list`, where another launched it.
    """

    uuid: str
    kind: str
    ok: bool
    ms: Optional[float]
    error: Optional[str]
    torch: Optional[Dict[str, Any]]
    framework: Optional[Dict[str, Any]] = None


class Found(Event, type="finding"):
    """A finding (findings.Finding): something is wrong.

    evidence: the lines it rests on.
    """

    id: str
    severity: str
    message: str
    cause: Optional[str]
    fix: Optional[str]
    evidence: List[str]


class TargetStarted(Event, type="target.started"):
    """The target's process has started.

    pid: null if the host writes it, which sees the container alone.
    framework: `name` and `version`; null if a kernel of torch shows it.
    """

    pid: Optional[int]
    argv: List[str]
    launcher: str
    framework: Optional[Dict[str, Any]]


class Sample(Event, type="sample"):
    """Hold what GPUs and container did at one moment.

    gpus: each with the keys of a GPU's sample.
    cpu_cores: cores in use by the container.
    main_cpu_cores: of the target's first process and those seen with a CUDA context.
    worker_cpu_cores: of all others.
    workers: how many others.
    cpu_throttled_pct: share of scheduler periods in which the CPU quota stopped the container; null without a quota.
    """

    gpus: List[Dict[str, Any]]
    cpu_cores: Optional[float]
    memory_bytes: Optional[int]
    memory_limit_bytes: Optional[int]
    shm_used_bytes: Optional[int]
    shm_total_bytes: Optional[int]
    processes: int
    main_cpu_cores: Optional[float]
    worker_cpu_cores: Optional[float]
    workers: int
    cpu_throttled_pct: Optional[float]
    cpu_quota_cores: Optional[float]


class GpuContext(Event, type="gpu.context"):
    """The first CUDA context of the target seen on a GPU; the proof of "used".

    evidence: `nvml-process` or `uvm-mapping`.
    """

    uuid: str
    pid: int
    evidence: str
    memory_bytes: Optional[int]


class Step(Event, type="step"):
    """Numbers of a script, under any names; any number is plotted.

    Keys that mean something: `step`, `epoch`, `loss`, `accuracy`, `images` (count since the last line), `images_per_s`,
    `phase` (`train` or `test`). For diagnosis: `data_s` (seconds waited for data since the last line),
    `communication_s` (the same for other ranks), `flops` (floating-point operations since the last line, of this rank).
    `by`: the framework that reported them at the end of an epoch, `keras`, where the script wrote no line itself.
    """

    def __init__(self, /, **keys: Any) -> None:
        self.__dict__.update(keys)


class Served(Event, type="served"):
    """Hold what a server has done since it was ready, by its own count. The last one counts.

    requests: answered, refused ones included.
    errors: HTTP status, `"429"` → answers with it; of 400 and above.
    p50_ms: from the request read to the answer written; null before the first answer, as the two that follow.
    batches: rows in a batch, `"32"` → batches of that size.
    queue_peak: rows that waited at most.
    seconds: since it was ready.
    warm_up_s: loading, capturing and comparing, before it was ready.
    examples: saved inputs that the warm-up compared with their saved outputs.
    largest_difference: of any of those outputs, absolute.
    """

    requests: int
    errors: Dict[str, int]
    p50_ms: Optional[float]
    p95_ms: Optional[float]
    p99_ms: Optional[float]
    batches: Dict[str, int]
    queue_peak: int
    seconds: float
    warm_up_s: Optional[float] = None
    examples: Optional[int] = None
    largest_difference: Optional[float] = None


class Note(Event, type="note"):
    """Something the user should know, shown in the receipt's timeline."""

    message: str


class Signal(Event, type="signal"):
    """A signal came, or was sent by the agent.

    signal: its number.
    origin: `user`, `engine`, `timeout`, `agent`, `end` (to what the target left behind), `pruner` (the trial fell
        behind others) or `search` (which has ended).
    forwarded_to: PIDs that got it.
    why: of `pruner` and `search`, in words.
    """

    signal: int
    name: str
    origin: str
    forwarded_to: List[int]
    why: Optional[str] = None


class TargetExited(Event, type="target.exited"):
    """The target has ended, or was never started.

    exit_code: null if killed.
    signal: that killed it; null if it exited.
    cause: `exited`, `signal`, `timeout` or `gpu-contract`.
    oom_kills: by the kernel meanwhile, as the cgroup counts them.
    """

    exit_code: Optional[int]
    signal: Optional[int]
    cause: str
    seconds: Optional[float]
    max_rss_bytes: Optional[int]
    oom_kills: Optional[int]


def never_started(cause: str, exit_code: Optional[int]) -> TargetExited:
    """Return the end of a target that there never was."""
    return TargetExited(exit_code=exit_code, signal=None, cause=cause, seconds=0.0, max_rss_bytes=None, oom_kills=None)


#: Suffixes of models by training frameworks. The agent looks for them on volumes, the receipt on the host.
MODEL_SUFFIXES = (".pt", ".pth", ".safetensors", ".ckpt", ".h5", ".keras", ".onnx", ".pkl", ".joblib")
#: Files of programs for themselves: locks, process IDs, sources and compiled sources.
_NOISE_SUFFIXES = (
    *(".lock", ".pid", ".sock", ".tmp", ".part", ".swp", ".py", ".pyc", ".pyi", ".c", ".cc", ".cpp", ".cu", ".h"),
    *(".hpp", ".o", ".a", ".so", ".cubin", ".ptx", ".ttir", ".ttgir", ".llir", ".source", ".best_config", ".whl"),
    ".egg",
)


def is_result(name: str) -> bool:
    """Return whether a file of this name may be what a run was for: all but what programs leave for themselves."""
    return not name.lower().endswith(_NOISE_SUFFIXES)


class FilesOutside(Event, type="files.outside"):
    """Results that the target wrote where they end with its container, as the agent found them at the target's end.

    folder: of the run's outputs, into which they were copied, each under its own path; None: none could be made.
    copied: the first of them, each with `path` and `bytes`.
    copied_files: how many.
    lost: the first of those that were too many or too large to be copied, likewise.
    lost_files: how many.
    """

    folder: Optional[str]
    copied: List[Dict[str, Any]]
    copied_files: int
    lost: List[Dict[str, Any]]
    lost_files: int


class ModelsSaved(Event, type="models.saved"):
    """Model files under /models written by this run, as seen from inside.

    files: each with `path` and `bytes`.
    """

    files: List[Dict[str, Any]]


class ReportRefused(Event, type="report.refused"):
    """Reports of the target posed as evidence.

    claims: type → lines.
    total: these are all; each earlier one has an event of its own.
    """

    claims: Dict[str, int]
    total: bool = False


class ReportUnreadable(Event, type="report.unreadable"):
    """A report of the target is not a JSON object, or longer than MAX_REPORT_BYTES."""


class AgentSummary(Event, type="agent.summary"):
    """Repeat the main points of a pod's evidence, towards its end: the kubelet cuts the beginning of a long log.

    events: lines sent before, with their `_seq`; a reader takes those that did not arrive.
    output_lines: of stdout and stderr, as the agent passed them on.
    """

    events: List[Dict[str, Any]]
    output_lines: List[int]


class AgentFinished(Event, type="agent.finished"):
    """The agent's last line.

    exit_code: of the agent.
    energy_j: UUID → joules since agent.started.
    contexts: UUIDs of the gpu.context events; null when the agent could not look until the end.
    """

    exit_code: int
    energy_j: Dict[str, Optional[float]]
    contexts: Optional[List[str]] = None


class HostLaunched(Event, type="host.launched"):
    """A backend has started the run.

    host: its name.
    handle: the container's or process's ID.
    """

    backend: str
    host: str
    handle: str
    image: Optional[str]
    image_id: Optional[str]
    image_digest: Optional[str]
    image_bytes: Optional[int]


class HostPod(Event, type="host.pod"):
    """A pod of a cluster runs.

    node: its number in the run.
    host: the cluster's node.
    image: the digest that its node runs.
    """

    name: str
    node: int
    host: Optional[str]
    image: str


class HostState(Event, type="host.state"):
    """Hold what the engine reported at the end.

    status: `exited` or `gone`.
    oom_killed: the engine saw the kernel's OOM killer act.
    error: in the engine's words.
    seconds: between start and end.
    """

    status: str
    exit_code: Optional[int]
    oom_killed: bool
    error: str = ""
    seconds: float = 0.0


class HostWitness(Event, type="host.witness"):
    """Hold what the host's own NVML saw of the run's GPUs.

    gpus: UUID → `looks` (how often its processes were read), `ours` (how often it listed one of this
        run), `others` (how often only others'), `working` (how often it attributed SM time to this run),
        `foreign` (how often another process worked there, or may have), `names` (of such processes).
    """

    gpus: Dict[str, Dict[str, Any]]


#: Key of one entry of ``sample.gpus`` → what it is; a counter that the chip or driver does not have is null, never 0.
GPU_SAMPLE: Dict[str, str] = json.loads(pkgutil.get_data(__name__, "gpu_sample.json") or b"{}")
GPU_SAMPLE_KEYS = tuple(GPU_SAMPLE)
#: Types that a target may report. A report of another type, or of none, is a step.
REPORT_TYPES = frozenset({Step.type, Served.type})
#: Types that only the agent and the host may write.
EVIDENCE_TYPES = frozenset(KINDS) - REPORT_TYPES
