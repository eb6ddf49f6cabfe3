"""The schema of events.jsonl: one JSON object a line, append-only, written by agent, host and target alike.

Every line has ``t`` (Unix time in seconds, float) and ``type``. ``source`` is ``agent`` (in the container or
beside the local process), ``host`` (the seatrial CLI) or ``target`` (the user's script, through
``$SEATRIAL_EVENTS``); a line without one is the target's. Types and their further keys:

    agent.started     pid, hostname, python, agent_version, uid, gid, cgroup {memory_limit_bytes, cpu_quota_cores}
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
    models.saved      files [{path, bytes}]: model files under /models written by this run; where the host cannot look
    agent.finished    exit_code of the agent, energy_j {uuid: joules since agent.started}
    host.launched     backend, host (its name), handle, image, image_digest, image_bytes
    host.pod          name, node, host, image: a pod of a cluster runs; image is the digest that its node runs
    host.state        status, exit_code, oom_killed: what the engine said at the end

Readers skip what they do not know; writers never change the meaning of a key.
Standard library only, Python >= 3.8: the agent carries this file into containers.
"""

import io
import json
import os
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple

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
        event = {"t": round(time.time(), 4), "type": type, "source": self.source}
        event.update(keys)
        line = encode(event)
        written = os.write(self._fd, line)
        if written != len(line):  # a torn line ends here, so that the next one is readable
            os.write(self._fd, b"\n")
            raise OSError(28, "No space left on device", self.path)
        return event

    def close(self) -> None:
        os.close(self._fd)


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
    except ValueError:
        return None
    if not isinstance(event, dict):
        return None
    if not isinstance(event.get("type"), str):
        event["type"] = "step"
    if not isinstance(event.get("t"), (int, float)) or isinstance(event.get("t"), bool):
        event["t"] = None
    event.setdefault("source", "target")
    return event


def of_type(events: List[Dict[str, Any]], type: str) -> Iterator[Dict[str, Any]]:
    """The events of one type, in order."""
    return (event for event in events if event["type"] == type)
