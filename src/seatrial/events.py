"""The schema of events.jsonl: one JSON object a line, append-only; the evidence of a run.

Every line has ``t`` (Unix time in seconds, float), ``type``, ``source`` and ``_chain``. ``source`` is ``agent`` (in the
container or beside the local process), ``host`` (the seatrial CLI) or ``target``. A target's lines are its reports: it
writes them to the file named in ``$SEATRIAL_EVENTS``, the agent passes them on, and they are ``step`` events whatever
they say. ``_seq`` numbers the lines that an agent sent, from 1 at its start. ``_chain`` is the digest of this line and
all before it (EvidenceLog). Types and their further keys:

    agent.started     pid, hostname, python, agent_version, uid, gid, cgroup {memory_limit_bytes, cpu_quota_cores},
                      alterable (why the target could alter the agent's evidence; null where it cannot)
    gpu.check         expected [uuid], visible [{uuid, name, index, compute_capability, memory_bytes}],
                      driver, cuda_driver, ok, error
    gpu.kernel        uuid, kind ("driver" | "torch"), ok, ms, error, torch {version, cuda, arch_list} or null
    finding           the keys of Finding.to_dict
    target.started    pid, argv, launcher, framework {name, version} or null (where a kernel of torch tells it)
    sample            gpus [GPU_SAMPLE_KEYS], cpu_cores (cores in use by the container), memory_bytes,
                      memory_limit_bytes, shm_used_bytes, shm_total_bytes, processes, main_cpu_cores (of the
                      target's first process and those seen with a CUDA context), worker_cpu_cores (of all
                      others), workers (how many), cpu_throttled_pct (share of scheduler periods in which the CPU
                      quota stopped the container; null without a quota), cpu_quota_cores
    gpu.context       uuid, pid, evidence ("nvml-process" | "uvm-mapping"), memory_bytes: first CUDA context of
                      the target seen on this GPU; the proof of "used"
    step              written by scripts: step, epoch, loss, accuracy, images (count since the last line),
                      images_per_s, phase ("train" | "test") … any number under any name is plotted. For diagnosis:
                      data_s (seconds waited for data since the last line), communication_s (the same for other
                      ranks), flops (floating-point operations since the last line, of this rank)
    note              message: something the user should know, shown in the receipt's timeline
    signal            signal (number), name, origin ("user" | "engine" | "timeout" | "agent"), forwarded_to [pid]
    target.exited     exit_code (None if killed), signal (None if exited), cause ("exited" | "signal" |
                      "timeout" | "gpu-contract"), seconds, max_rss_bytes, oom_kills (cgroup counter delta)
    models.saved      files [{path, bytes}]: model files under /models written by this run, as seen from inside
    report.refused    claims {type: lines}: reports of the target that posed as evidence of these types
    report.unreadable a report of the target that is no JSON object, or longer than MAX_REPORT_BYTES
    agent.finished    exit_code of the agent, energy_j {uuid: joules since agent.started}, contexts [uuid] as told
    host.launched     backend, host (its name), handle, image, image_digest, image_bytes
    host.pod          name, node, host, image: a pod of a cluster runs; image is the digest that its node runs
    host.state        status, exit_code, oom_killed and, where it told them, error and seconds: what the engine
                      said at the end
    host.witness      gpus {uuid: {looks, ours, others}}: how often the host's own NVML was asked for the processes
                      on a GPU, how often it listed one of this run's container, and one that is not

Readers skip what they do not know; writers never change the meaning of a key.
Standard library only, Python >= 3.8: the agent carries this file into containers.
"""

import fcntl
import io
import json
import os
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

SCHEMA_VERSION = 1

#: Keys of one entry of ``sample.gpus``; a counter that the chip or driver does not have is null, never 0.
GPU_SAMPLE_KEYS = (
    "uuid",
    "utilization_pct",  # NVML: share of the last sample period in which some kernel ran
    "memory_utilization_pct",  # NVML: share of that period in which device memory was read or written
    "graphics_activity_pct",  # GPM: share of time with any context active
    "sm_activity_pct",  # GPM: share of SM cycles with a warp resident
    "sm_occupancy_pct",  # GPM: resident warps of the possible
    "tensor_activity_pct",  # GPM: cycles with a tensor pipe active
    "fp32_activity_pct",  # GPM: cycles with the FP32 pipe active
    "dram_activity_pct",  # GPM: share of memory bandwidth
    "pcie_tx_bytes_per_s",  # GPM: from the GPU
    "pcie_rx_bytes_per_s",  # GPM: to the GPU
    "nvlink_tx_bytes_per_s",  # GPM: all links, headers included
    "nvlink_rx_bytes_per_s",
    "memory_used_bytes",  # what the driver reserves for itself included
    "memory_free_bytes",
    "memory_reserved_bytes",  # by the driver, for itself
    "memory_total_bytes",
    "power_w",
    "energy_j",  # since the driver loaded; read seldom, it costs 3.4 ms of CPU a call on an H200
    "temperature_c",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "throttle_reasons",  # list of names, [] when none
    "ecc_corrected",  # since the driver loaded; read as seldom as the energy
    "ecc_uncorrected",
)

#: The secret under whose name the webhook of ``[watch]`` travels: whoever has its URL may post there.
WEBHOOK_SECRET = "SEATRIAL_WEBHOOK"

#: Environment variable that names the file target scripts may append JSON lines to.
EVENTS_VARIABLE = "SEATRIAL_EVENTS"

#: What only agent and host may say. A report of another type, or of none, is a step.
EVIDENCE_TYPES = frozenset(
    {
        "agent.started", "gpu.check", "gpu.kernel", "finding", "target.started", "sample", "gpu.context", "note",
        "signal", "target.exited", "models.saved", "report.refused", "report.unreadable", "agent.finished",
        "host.launched", "host.pod", "host.state", "host.witness",
    }
)  # fmt: skip

#: A longer line of a report is no step; a script that reports a thousand numbers a line needs 30 KB.
MAX_REPORT_BYTES = 64 * 1024

#: A line whose values are nested deeper than this is no event: who writes it down again, or looks through it, would run
#: out of stack. Ours are 4 deep.
MAX_DEPTH = 64

#: What the digest of an empty log is, in hex; and how much of SHA-256 is kept of each line's.
CHAIN_START = "0" * 32
_CHAIN_DIGITS = 32


def encode(event: Dict[str, Any]) -> bytes:
    """One line of events.jsonl. NaN and infinities become null: JSON has none."""
    try:
        text = json.dumps(event, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(event), separators=(",", ":"))
    return text.encode() + b"\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


class EventLog:
    """Appends events to a file. One write(2) a line on an O_APPEND descriptor, so writers do not interleave."""

    def __init__(self, path: str, source: str) -> None:
        self.path = path
        self.source = source
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def write(self, type: str, **keys: Any) -> Dict[str, Any]:
        """Append one event and return it. Raises OSError when the disk is full; the line is then not there."""
        event = _stamped(type, self.source, keys)
        line = encode(event)
        written = os.write(self._fd, line)
        if written != len(line):  # a torn line ends here, so that the next one is readable
            os.write(self._fd, b"\n")
            raise OSError(28, "No space left on device", self.path)
        return event

    def close(self) -> None:
        os.close(self._fd)


class EvidenceLog:
    """Appends to a run's events.jsonl, each line chained to those before it. Several processes may write at once.

    A line's ``_chain`` is the digest of the line without it and of the chain before: whoever changes, adds or removes a
    line has to change every later one. The last one stands in the receipt.
    """

    def __init__(self, path: str, source: str) -> None:
        self.path = path
        self.source = source
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._size, self._last = 0, CHAIN_START

    def write(self, type: str, **keys: Any) -> Dict[str, Any]:
        """Append one event and return it. Raises OSError when the disk is full; the line is then not there."""
        event = _stamped(type, self.source, keys)
        self.append([event])
        return event

    def append(self, events: List[Dict[str, Any]]) -> None:
        """Append events as they are, all or none. Raises OSError."""
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            self._catch_up()
            lines, last = [], self._last
            for event in events:
                line = encode({key: value for key, value in event.items() if key != "_chain"})[:-1]
                last = link(last, line)
                lines.append(line[:-1] + b',"_chain":"%s"}\n' % last.encode())
            data = b"".join(lines)
            if os.write(self._fd, data) != len(data):
                os.ftruncate(self._fd, self._size)
                raise OSError(28, "No space left on device", self.path)
            self._size, self._last = self._size + len(data), last
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _catch_up(self) -> None:
        """Learn what others have appended meanwhile; what a writer that was killed left unfinished is cut off."""
        size = os.fstat(self._fd).st_size
        if size == self._size:
            return
        span = 64 * 1024
        while True:
            begin = max(0, size - span)
            tail = os.pread(self._fd, size - begin, begin)
            whole = tail.rfind(b"\n") + 1
            start = tail.rfind(b"\n", 0, max(0, whole - 1)) + 1
            if begin == 0 or start > 0:
                break
            span *= 4
        if whole < len(tail):
            os.ftruncate(self._fd, begin + whole)
        self._size = begin + whole
        self._last = (split_chain(tail[start : whole - 1])[1] or CHAIN_START) if whole else CHAIN_START

    def close(self) -> None:
        os.close(self._fd)


def _stamped(type: str, source: str, keys: Dict[str, Any]) -> Dict[str, Any]:
    event = {"t": round(time.time(), 4), "type": type, "source": source}
    event.update(keys)
    return event


def link(before: str, line: bytes) -> str:
    """The chain behind a line without its own ``_chain``, as encode writes it."""
    import hashlib  # 4 MB of libcrypto that an agent in a container, which chains nothing, need not carry

    return hashlib.sha256(before.encode() + line).hexdigest()[:_CHAIN_DIGITS]


def split_chain(line: bytes) -> Tuple[bytes, Optional[str]]:
    """A line without its ``_chain``, and that; (line, None) where it has none."""
    body, mark, rest = line.rpartition(b',"_chain":"')
    if not mark or len(rest) != _CHAIN_DIGITS + 2 or not rest.endswith(b'"}'):
        return line, None
    return body + b"}", rest[:-2].decode("ascii", "replace")


class Chain(NamedTuple):
    """What following a log's chain found: how many lines hold, the digest behind them, and the first that does not.

    ``broken_at`` is a line's number, from 1, or None.
    """

    lines: int
    digest: str
    broken_at: Optional[int]


def follow_chain(path: str) -> Chain:
    """Follow the chain of an events.jsonl. Raises OSError."""
    lines, digest = 0, CHAIN_START
    with open(path, "rb") as file:
        for line in file:
            body, told = split_chain(line[:-1] if line.endswith(b"\n") else line)
            if told is None or told != link(digest, body):
                return Chain(lines, digest, lines + 1)
            lines, digest = lines + 1, told
    return Chain(lines, digest, None)


def report(line: bytes) -> Tuple[Optional[Dict[str, Any]], Optional[str]]:
    """A line that the target wrote as the step that it is; and the type of evidence that it posed as, or None.

    Nothing of what it claims to be is taken over: type, source, _seq and _chain are ours. (None, None) is no report.
    """
    if len(line) > MAX_REPORT_BYTES:
        return None, None
    event = parse(line)
    if event is None:
        return None, None
    claimed = event["type"] if event["type"] in EVIDENCE_TYPES else None
    if claimed is not None or event.get("source") in ("agent", "host"):
        return None, claimed or "step"
    for ours in ("_seq", "_chain", "node"):
        event.pop(ours, None)
    event.update(type="step", source="target")
    return event, None


def read(path: str, offset: int = 0) -> Tuple[List[Dict[str, Any]], int, int]:
    """Events of the complete lines from byte ``offset`` on.

    Returns:
        (events, new offset, lines skipped because they were no JSON object). A missing file has no events.
    """
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            data = file.read()
    except FileNotFoundError:
        return [], offset, 0
    end = data.rfind(b"\n") + 1
    events, skipped = [], 0
    for line in io.BytesIO(data[:end]):
        event = parse(line)
        if event is not None:
            events.append(event)
        elif line.strip():
            skipped += 1
    return events, offset + end, skipped


def parse(line: bytes) -> Optional[Dict[str, Any]]:
    """The event on one line, or None when it is no JSON object. A line without a type is a target's step."""
    try:
        event = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict):
        return None
    if line.count(b"[") + line.count(b"{") > MAX_DEPTH and _is_deeper(event, MAX_DEPTH):
        return None
    if not isinstance(event.get("type"), str):
        event["type"] = "step"
    if not isinstance(event.get("t"), (int, float)) or isinstance(event.get("t"), bool):
        event["t"] = None
    event.setdefault("source", "target")
    return event


def _is_deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, (dict, list)):
        return False
    return levels == 0 or any(
        _is_deeper(item, levels - 1) for item in (value.values() if isinstance(value, dict) else value)
    )


def of_type(events: List[Dict[str, Any]], type: str) -> Iterator[Dict[str, Any]]:
    """The events of one type, in order."""
    return (event for event in events if event["type"] == type)
