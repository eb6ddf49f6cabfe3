"""Reading: GPUs, containers and the machine at one moment, from which every view is made; files of readings."""

from __future__ import annotations

import contextlib
import csv
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from seatrial.errors import DiskError, SeatrialError, UsageError, os_errors
from seatrial.events import GPU_SAMPLE_KEYS
from seatrial.job.in_container import NAME_LABEL, RUN_LABEL
from seatrial.probe import container, nvml, processes
from seatrial.probe.container import Cgroup
from seatrial.probe.processes import Owner
from seatrial.probe.sampler import COUNTER_INTERVAL_S, Sampler
from seatrial.system import command
from seatrial.system.files import in_the_way
from seatrial.system.host import Host
from seatrial.system.text import as_typed

#: A driver that vanished may come back (a reset, an upgrade): NVML is opened anew this often.
REOPEN_S = 10.0
#: Read once in COUNTER_INTERVAL_S; a reading shows the last known value.
_SELDOM = ("energy_j", "ecc_corrected", "ecc_uncorrected")
#: Interval of GPM values for a view that somebody watches.
GPM_INTERVAL_S = 1.0
#: Marks the processes of a run on the local backend (agent/target.py).
_RUN_VARIABLE = b"SEATRIAL_RUN_ID="

Read = Callable[[], dict[str, Any]]
#: Labels by which a container shows its run.
_LABELS = (RUN_LABEL, NAME_LABEL)
#: Seconds between queries for unknown IDs: a container of an engine that we cannot query stays unknown.
_ASK_AGAIN_S = 5.0
_TIMEOUT_S = 10.0


class MachineReader:
    """Reads this machine again and again; handles stay open in between.

    ``names``: of the engines' containers. ``service``: also read what an exporter wants, as seldom as the energy.
    """

    def __init__(self, names: ContainerNames, *, pynvml: Any = None, service: bool = False) -> None:
        self._names, self._pynvml, self._service = names, pynvml, service
        self._machine = container.MachineSampler()
        self._cpu: dict[Owner, tuple[float, float]] = {}
        self._xids: dict[str, int] = {}
        self._slow: dict[str, dict[str, Any]] = {}
        self._service_due_s = float("-inf")
        self._attribution = processes.Attribution()
        self._sampler = self._open()

    def _open(self) -> Sampler:
        self._opened_s = time.monotonic()
        self.inventory = nvml.inventory(self._pynvml)
        self._gpus = [gpu for gpu in self.inventory.gpus if not gpu.mig_enabled]
        return Sampler([gpu.uuid for gpu in self._gpus], pynvml=self._pynvml, gpm_interval_s=GPM_INTERVAL_S)

    def read(self) -> dict[str, Any]:
        """Read everything. Keys: t, machine (Machine.read), driver_version, gpus (GPU_SAMPLE_KEYS and index, name, mig,
        pci_bus_id, processes, xid), containers (_container's keys), problems (sentences). Unknown values are None.
        """
        troubled = self.inventory.error or self._sampler.error or self._sampler.lost or self._sampler.failing
        if troubled and time.monotonic() - self._opened_s > REOPEN_S:
            self._sampler.close()
            self._sampler = self._open()
        found = self._attribution.containers()
        self._names.look_up([owner.container_id for owner in found])
        gpus = self._read_gpus()
        return {
            "t": time.time(),
            "machine": self._machine.read(),
            "driver_version": self.inventory.driver_version,
            "cuda_driver_version": self.inventory.cuda_driver_version,
            "gpus": gpus,
            "containers": self._containers(found, gpus),
            "problems": self._problems(),
        }

    def _problems(self) -> list[str]:
        reasons = [self.inventory.error, self._sampler.error if self._gpus else None]
        problems = [f"No GPU: {reason}" if not self._gpus else reason for reason in reasons if reason]
        if not problems and not self._gpus:
            problems = ["No GPU: the driver lists none"]
        problems += self.inventory.faults
        problems += [f"{uuid} is lost: it fell off the bus" for uuid in sorted(self._sampler.lost)]
        problems += [f"{uuid} no longer responds to NVML" for uuid in sorted(self._sampler.failing)]
        return problems + self._names.problems

    def _read_gpus(self) -> list[dict[str, Any]]:
        sample = self._sampler.sample()
        for uuid, numbers in self._sampler.xids().items():
            self._xids[uuid] = numbers[-1]
        service_due = self._service and time.monotonic() >= self._service_due_s
        if service_due:
            self._service_due_s = time.monotonic() + COUNTER_INTERVAL_S
        read = []
        for gpu, values in zip(self._gpus, sample["gpus"], strict=True):
            slow = self._slow.setdefault(gpu.uuid, {})
            if gpu.uuid in self._sampler.lost | self._sampler.failing:
                slow.clear()
            slow.update({key: values[key] for key in _SELDOM if values[key] is not None})
            slow.update(self._sampler.service(gpu.uuid) if service_due else {})
            about = {"index": gpu.index, "name": gpu.name, "mig": gpu.mig, "pci_bus_id": gpu.pci_bus_id}
            listed = self._sampler.processes(gpu.uuid)
            users = [_process(p.pid, p.memory_bytes, p.share_pct) for p in listed or []]
            read.append({**about, **values, **slow, "xid": self._xids.get(gpu.uuid), "processes": users})
        return read

    def _containers(self, found: Mapping[Owner, Sequence[int]], gpus: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        named = self._names.known
        rows = [self._container(owner, pids, gpus, named.get(owner.container_id)) for owner, pids in found.items()]
        self._cpu = {owner: before for owner, before in self._cpu.items() if owner in found}
        return sorted(rows, key=lambda row: (-(row["gpu_memory_bytes"] or 0), row["name"]))

    def _container(
        self, owner: Owner, pids: Sequence[int], gpus: Sequence[dict[str, Any]], named: Named | None
    ) -> dict[str, Any]:
        cgroup = Cgroup(str(pids[0]))
        shared = container.read(f"/proc/{pids[0]}/root/dev/shm")
        members = set(pids)
        used = [(gpu, p) for gpu in gpus for p in gpu["processes"] if p["pid"] in members]
        labels = named.labels if named else {}
        return {
            "id": owner.container_id,
            "engine": owner.engine,
            "pod_uid": owner.pod_uid,
            "name": named.name if named else owner.container_id[:12],
            "image": named.image if named else None,
            "run_id": labels.get(RUN_LABEL) or None,
            "run_name": labels.get(NAME_LABEL) or None,
            "cpu_cores": self._cores(owner, cgroup.cpu_seconds()),
            "cpu_quota_cores": cgroup.cpu_quota_cores(),
            "memory_bytes": cgroup.memory_bytes(),
            "memory_limit_bytes": cgroup.memory_limit_bytes(),
            "shm_used_bytes": shared.used_bytes if shared else None,
            "shm_total_bytes": shared.total_bytes if shared else None,
            "processes": len(pids),
            "gpus": list({gpu["uuid"]: gpu["mig"] or gpu["index"] for gpu, _ in used}.values()),
            "gpu_memory_bytes": sum(p["memory_bytes"] or 0 for _, p in used) if gpus else None,
            "gpu_share_pct": sum(p["share_pct"] or 0.0 for _, p in used) if gpus else None,
        }

    def _cores(self, owner: Owner, cpu_seconds: float | None) -> float | None:
        """Return the mean since the last reading, None in the first. A counter that went back counts from 0."""
        if cpu_seconds is None:
            return None
        now_s = time.monotonic()
        before = self._cpu.get(owner)
        self._cpu[owner] = (cpu_seconds, now_s)
        if before is None or now_s <= before[1]:
            return None
        return round(max(0.0, cpu_seconds - before[0]) / (now_s - before[1]), 3)


def unread(reason: str) -> dict[str, Any]:
    """Return the reading of a moment that could not be read: nothing is known but the reason."""
    return {
        "t": time.time(),
        "machine": dict.fromkeys(("cpu_cores", "cpu_count", "memory_used_bytes", "memory_total_bytes", "load_1m")),
        "driver_version": None,
        "cuda_driver_version": None,
        "gpus": [],
        "containers": [],
        "problems": [reason],
    }


def _process(pid: int, memory_bytes: int | None, share_pct: float | None) -> dict[str, Any]:
    owner = processes.owner(pid)
    command = processes.command_line(pid).replace(b"\0", b" ").decode("utf-8", "replace").strip()
    marks = [entry for entry in processes.environment(pid) if entry.startswith(_RUN_VARIABLE)]
    return {
        "pid": pid,
        "memory_bytes": memory_bytes,
        "share_pct": share_pct,
        "command": command[:200] or None,
        "container_id": owner.container_id if owner else None,
        "run_id": marks[0].partition(b"=")[2].decode("utf-8", "replace") if marks else None,
    }


@dataclass(frozen=True)
class Named:
    """A container as its engine knows it."""

    name: str
    image: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


class ContainerNames:
    """Looks up names in the background: an engine that hangs must not stop the clock of a view.

    ``known``: container ID → its name. ``problems``: the errors of engines that exist and did not answer.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self.known: dict[str, Named] = {}
        self.problems: list[str] = []
        self._looked_up_s = float("-inf")
        self._thread: threading.Thread | None = None

    def look_up(self, ids: Iterable[str], *, wait: bool = False) -> None:
        """Query the engines for unknown IDs; ``wait`` for the answer."""
        busy = self._thread is not None and self._thread.is_alive()
        if busy or time.monotonic() - self._looked_up_s < _ASK_AGAIN_S or set(ids) <= set(self.known):
            return
        self._looked_up_s = time.monotonic()
        self._thread = threading.Thread(target=self._ask, name="engines", daemon=True)
        self._thread.start()
        if wait:
            self._thread.join(_TIMEOUT_S)

    def _ask(self) -> None:
        known: dict[str, Named] = {}
        problems = []
        for ask in (partial(self._engine, "docker"), partial(self._engine, "podman"), self._containerd):
            try:
                known.update(ask())
            except SeatrialError as error:
                if not isinstance(error.__cause__, (FileNotFoundError, PermissionError)):  # there, and in trouble
                    problems.append(error.message)
        self.known = {**self.known, **known}
        self.problems = problems

    def _engine(self, name: str) -> dict[str, Named]:
        from seatrial.backends import table  # with plans' models, which a first screen need not wait for

        engine = table.engine(name, self._host)
        labels = (engine.dialect.label_form % label for label in _LABELS)
        form = "\t".join(("{{.ID}}", "{{.Names}}", "{{.Image}}", *labels))
        argv = [*engine.call, "ps", "--no-trunc", "--format", form]
        printed = command.check(argv, timeout_s=_TIMEOUT_S).stdout.splitlines()
        rows = [row for row in (line.split("\t") for line in printed) if len(row) == 5]
        return {id: Named(named, image, dict(zip(_LABELS, values, strict=True))) for id, named, image, *values in rows}

    def _containerd(self) -> dict[str, Named]:
        """Read crictl of a Kubernetes node; its containers carry the pod's name as labels."""
        ended, found = command.check(["crictl", "ps", "-o", "json"], timeout_s=_TIMEOUT_S), dict[str, Named]()
        for entry in command.json_object(ended.stdout).get("containers", []):
            labels = entry.get("labels") or {}
            parts = [labels.get(f"io.kubernetes.{key}") for key in ("pod.namespace", "pod.name", "container.name")]
            name = "/".join(part for part in parts if part) or (entry.get("metadata") or {}).get("name", "?")
            found[str(entry.get("id"))] = Named(name, (entry.get("image") or {}).get("image"), labels)
        return found


# ---------------------------------------------------------------------------------------------- files of readings

#: Columns of CSV. A reading without GPUs is one row with the machine's columns.
COLUMNS = (
    "t", "index", "name", "mig", *GPU_SAMPLE_KEYS, "processes", "xid", "machine_cpu_cores", "machine_memory_used_bytes",
)  # fmt: skip


def open_sink(path: Path) -> ReadingLog:
    """Open a .csv or .jsonl file; continue an existing one. Raises UsageError for another suffix, DiskError."""
    kinds = {".csv": CsvLog, ".jsonl": ReadingLog}
    if path.suffix not in kinds:
        message = f"{path.name}: a log file must end in .csv or .jsonl"
        raise UsageError(message, run=f"seatrial top --log {as_typed(path.with_suffix('.csv'))}")
    return kinds[path.suffix](path)


def rows(reading: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """Yield flat rows of a reading, with the keys of COLUMNS."""
    machine = {
        "t": round(reading["t"], 3),
        "machine_cpu_cores": reading["machine"]["cpu_cores"],
        "machine_memory_used_bytes": reading["machine"]["memory_used_bytes"],
    }
    for gpu in reading["gpus"] or [{"processes": []}]:
        row = {**dict.fromkeys(COLUMNS), **machine, **{key: gpu.get(key) for key in COLUMNS if key in gpu}}
        row["processes"] = len(gpu["processes"])
        row["throttle_reasons"] = " ".join(gpu.get("throttle_reasons") or [])
        yield row


class ReadingLog:
    """A file of readings as JSON lines. Raises DiskError, as ``write`` does."""

    def __init__(self, path: Path) -> None:
        in_folder = partial(in_the_way, path.absolute().parent)
        self._errors = partial(os_errors, DiskError, f"Cannot write {path}", in_folder)
        with self._errors():
            self._file = path.open("a", newline="", encoding="utf-8")

    def write(self, reading: Mapping[str, Any]) -> None:
        with self._errors():
            self._put(reading)
            self._file.flush()

    def _put(self, reading: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(reading, separators=(",", ":")) + "\n")

    def close(self) -> None:
        with contextlib.suppress(OSError):  # write has reported the error
            self._file.close()


class CsvLog(ReadingLog):
    """A file of readings as CSV, a row for each GPU."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._writer = csv.DictWriter(self._file, COLUMNS)
        if self._file.tell() == 0:
            self._writer.writeheader()

    def _put(self, reading: Mapping[str, Any]) -> None:
        self._writer.writerows(rows(reading))
