"""Fakes that work and fakes that fail, next to each Protocol of the code.

Import as ``from fakes import FakeBackend``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from seatrial.backends import table
from seatrial.backends.base import OF_CONTAINERS, Backend, EngineFacts, Handle, ImageFacts, State
from seatrial.common.agent_plan import AgentPlan
from seatrial.errors import EngineUnavailableError, GpuContractError, ImageError, SeatrialError
from seatrial.job import loading
from seatrial.job.model import Job, Target
from seatrial.job.plan import ContainerPlan, EngineAddress, ImagePlan, Plan
from seatrial.system.command import Completed
from seatrial.system.host import Host


def load_job(project: Path, flags: dict[str, Any], **keys: Any) -> Job:
    """job.loading.load_job with the backends that there are."""
    return loading.load_job(project, flags, without_container=table.runs_here, **keys)


def untold() -> contextlib.AbstractContextManager[Callable[[str], None]]:
    """Return a context manager that ignores the output of builds and pulls."""
    return contextlib.nullcontext(lambda line: None)


def a_local_job(folder: Path, script: str) -> tuple[Job, Host]:
    """A script without GPUs on the local backend, in a project of its own, and a host with a state of its own."""
    names = {"SEATRIAL_STATE": "state", "SEATRIAL_LEASES": "leases"}
    project = folder / "project"
    project.mkdir()
    (project / "train.py").write_text(script)
    job = Job(project=project, target=Target(kind="script", value="train.py"), backend="local", gpus="none")
    return job, Host({**os.environ, **{variable: str(folder / name) for variable, name in names.items()}})


def a_program(path: Path, script: str) -> str:
    """Write a shell script in place of a program; return its path."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def a_plan(run_dir: Path = Path("/tmp/run"), **changes: object) -> Plan:
    """A plan of a CPU run on Docker; ``changes`` replace its fields."""
    fields = {
        "run_id": "20261120-000000-test",
        "created_at": "2026-11-20T00:00:00+0000",
        "job": Job(project=Path("/tmp/project"), target=Target(kind="script", value="train.py")),
        "backend": "docker",
        "injection": "none",
        "gpus": (),
        "image": ImagePlan(tag="python:3.11-slim-bookworm", build=False),
        "container": a_container(),
        "agent": AgentPlan(
            run_id="20261120-000000-test", argv=("python3", "train.py"), workdir="/workspace", run_dir=str(run_dir)
        ),
    }
    return Plan.model_validate({**fields, **changes})


def a_container(**changes: object) -> ContainerPlan:
    """A container that prints one line and ends; ``changes`` replace its fields."""
    fields = {
        "name": "seatrial-test",
        "hostname": None,
        "command": ("sh", "-c", "echo out; echo err >&2"),
        "user": "0:0",
        "workdir": "/",
        "network": "none",
        "labels": {"seatrial.run": "20261120-000000-test"},
    }
    return ContainerPlan.model_validate({**fields, **changes})


class FakeImages:
    """An image store in memory; it builds and runs nothing."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.call = [name]
        self.held = {"python:3.11-slim-bookworm": ImageFacts("sha256:1", None, python="python3")}

    def image(self, reference: str) -> ImageFacts | None:
        return self.held.get(reference)

    def pull(self, reference: str, progress: Callable[[str], None] | None = None) -> ImageFacts:
        if progress is not None:
            progress(f"Pulling {reference}")
        return self.held.setdefault(reference, ImageFacts("sha256:2", "sha256:3"))

    def find_python(self, reference: str) -> str | None:
        return self.held[reference].python

    def storage_root(self) -> Path | None:
        return None

    def run_once(self, reference: str, argv: Sequence[str], **options: object) -> Completed:
        """Answers each question with the size of an image."""
        return Completed(tuple(argv), 0, stdout="125000000\n")


class OfflineImages(FakeImages):
    """A store without a registry in reach."""

    def pull(self, reference: str, progress: Callable[[str], None] | None = None) -> ImageFacts:
        raise ImageError(f"Image {reference} cannot be pulled", run=f"{self.name} pull {reference}")


class FakeBackend:
    """A backend that keeps its runs in memory. ``end`` ends one, as if its agent had."""

    traits = OF_CONTAINERS

    def __init__(self, name: str = "docker", facts: EngineFacts | None = None) -> None:
        self.name = name
        self.answer = facts or EngineFacts(name, available=True, reason=f"{name} 99 responds", version="99")
        self.images = FakeImages(name)
        self.states: dict[str, State] = {}
        self.calls: list[tuple[object, ...]] = []

    def bound_to(self, engine: EngineAddress) -> FakeBackend:
        return self

    def facts(self) -> EngineFacts:
        return self.answer

    def compile(self, plan: Plan) -> list[str]:
        return [self.name, "run", plan.run_id]

    def start(self, plan: Plan, run_dir: Path) -> Handle:
        handle = self._handle(plan.run_id, run_dir)
        self.states[handle.id] = State("running")
        return handle

    def find(self, run_id: str, run_dir: Path) -> Handle | None:
        handle = self._handle(run_id, run_dir)
        return handle if handle.id in self.states else None

    def _handle(self, run_id: str, run_dir: Path) -> Handle:
        return Handle(backend=self.name, id=f"id-of-{run_id}", started="1", run_id=run_id, run_dir=str(run_dir))

    def collect(
        self, handle: Handle, run_dir: Path, echo: Callable[[str], None]
    ) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def state(self, handle: Handle) -> State:
        return self.states.get(handle.id, State("gone"))

    def stop(self, handle: Handle, grace_s: float) -> None:
        self.calls.append(("stop", handle.id, grace_s))
        self.end(handle, exit_code=143)

    def interrupt(self, handle: Handle) -> bool:
        self.calls.append(("interrupt", handle.id))
        return True

    def kill(self, handle: Handle) -> None:
        self.calls.append(("kill", handle.id))
        self.end(handle, exit_code=137)

    def exec(self, handle: Handle, argv: list[str], *, interactive: bool) -> int:
        self.calls.append(("exec", handle.id, tuple(argv), interactive))
        return 0

    def shell(self, plan: Plan, run_dir: Path) -> int:
        self.calls.append(("shell", plan.run_id))
        return 0

    def remove(self, handle: Handle) -> None:
        self.states.pop(handle.id, None)

    def end(self, handle: Handle, *, exit_code: int, oom_killed: bool = False) -> None:
        """End a run that is going on."""
        if self.states[handle.id].status == "running":
            self.states[handle.id] = State("exited", exit_code, oom_killed)


class AbsentBackend(FakeBackend):
    """An engine that is not there: facts report it, and everything else raises."""

    def __init__(self, name: str = "docker") -> None:
        super().__init__(
            name, EngineFacts(name, available=False, reason=f"{name} is not installed", fix=f"install {name}")
        )

    def start(self, plan: Plan, run_dir: Path) -> Handle:
        raise EngineUnavailableError(f"{self.name} is not installed", run=f"install {self.name}")

    def state(self, handle: Handle) -> State:
        raise EngineUnavailableError(f"{self.name} is not installed", run=f"install {self.name}")


class RefusingBackend(FakeBackend):
    """An engine that answers, and refuses to start with the error given."""

    def __init__(self, error: SeatrialError, name: str = "docker") -> None:
        super().__init__(name)
        self.error = error

    def start(self, plan: Plan, run_dir: Path) -> Handle:
        raise self.error


class DyingBackend(FakeBackend):
    """An engine that starts a run and then answers no more, as when its daemon is stopped."""

    def state(self, handle: Handle) -> State:
        raise EngineUnavailableError("The daemon does not answer", run="sudo systemctl start docker")


class ForgetfulBackend(FakeBackend):
    """An engine that starts a run whose container somebody then removes."""

    def state(self, handle: Handle) -> State:
        return State("gone")


class OfflineBackend(FakeBackend):
    """An engine without a registry in reach."""

    def __init__(self, name: str = "docker") -> None:
        super().__init__(name)
        self.images = OfflineImages(name)


def failing_backends() -> dict[str, Backend]:
    """One of each way to fail, by its name, for parametrised tests."""
    return {
        "absent": AbsentBackend(),
        "no-gpu": RefusingBackend(GpuContractError("docker cannot pass GPUs to containers", run="install toolkit")),
        "dying": DyingBackend(),
        "forgetful": ForgetfulBackend(),
        "offline": OfflineBackend(),
    }


# NVML: a module object to hand to seatrial.probe in place of pynvml.


class FakeNvmlError(Exception):
    """pynvml.NVMLError: ``value`` is NVML's number."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return {3: "Not Supported", 15: "GPU is lost", 18: "Driver/library version mismatch"}.get(self.value, "Unknown")


@dataclass
class FakeGpu:
    """A GPU as NVML knows it; the handle is the object itself. ``missing`` names functions it does not support."""

    uuid: str = "GPU-de421f49-0f0c-0000-0000-000000000000"
    name: str = "NVIDIA H200"
    minor: int = 0
    memory_used_bytes: int = 1_000_000_000
    memory_bytes: int = 150_754_820_096
    utilization_pct: int = 90
    power_mw: int = 350_500
    energy_mj: int = 5_000_000
    throttle_bits: int = 0x1 | 0x4
    processes: list[tuple[int, int | None]] = field(default_factory=list)
    gpm: dict[int, float] = field(default_factory=lambda: {2: 75.25, 3: 40.0, 5: 31.5, 10: 12.0})
    slices: list[FakeGpu] = field(default_factory=list)
    parent: FakeGpu | None = None
    missing: frozenset[str] = frozenset()
    lost: bool = False
    failing: bool = False
    shares: dict[int, int] = field(default_factory=dict)
    xids: list[int] = field(default_factory=list)
    ecc: tuple[int, int] = (0, 0)


class FakeNvml:
    """Works, unless ``init_error`` is set.

    Args:
        gpus: None in the list is a GPU that NVML counts but cannot open (its device node is withheld).
        init_error: what nvmlInit fails with: 9 driver not loaded, 18 driver/library mismatch.
    """

    NVMLError = FakeNvmlError
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_ERROR_NOT_FOUND = 6
    NVML_GPM_METRICS_GET_VERSION = 1

    def __init__(self, gpus: list[FakeGpu | None] | None = None, init_error: int | None = None) -> None:
        self.gpus = [FakeGpu()] if gpus is None else gpus
        self.init_error = init_error
        self.energy_reads = 0
        self.gpm_samples_alive = 0

    def nvmlInit(self) -> None:
        if self.init_error is not None:
            raise FakeNvmlError(self.init_error)

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.159.04"

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return 13000

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        gpu = self.gpus[index]
        if gpu is None:
            raise FakeNvmlError(2)
        return gpu

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:
        for gpu in filter(None, self.gpus):
            for candidate in (gpu, *gpu.slices):
                if candidate.uuid == uuid:
                    return candidate
        raise FakeNvmlError(6)

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:
        return self._ask(gpu, "nvmlDeviceGetUUID").uuid

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> str:
        return self._ask(gpu, "nvmlDeviceGetName").name

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu, version: int | None = None) -> SimpleNamespace:
        self._ask(gpu, "nvmlDeviceGetMemoryInfo")
        return SimpleNamespace(total=gpu.memory_bytes, used=gpu.memory_used_bytes, reserved=600_000_000)

    def nvmlDeviceGetUtilizationRates(self, gpu: FakeGpu) -> SimpleNamespace:
        self._ask(gpu, "nvmlDeviceGetUtilizationRates")
        if gpu.slices or gpu.parent:  # as NVML: not with MIG on
            raise FakeNvmlError(3)
        return SimpleNamespace(gpu=gpu.utilization_pct, memory=12)

    def nvmlDeviceGetMigMode(self, gpu: FakeGpu) -> list[int]:
        return [1, 1] if self._ask(gpu, "nvmlDeviceGetMigMode").slices else [0, 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: FakeGpu) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: FakeGpu, index: int) -> FakeGpu:
        if index >= len(gpu.slices):
            raise FakeNvmlError(6)
        return gpu.slices[index]

    def nvmlDeviceIsMigDeviceHandle(self, gpu: FakeGpu) -> bool:
        return gpu.parent is not None

    def nvmlDeviceGetGpuInstanceId(self, gpu: FakeGpu) -> int:
        assert gpu.parent is not None
        return gpu.parent.slices.index(gpu) + 1

    def nvmlDeviceGetComputeInstanceId(self, gpu: FakeGpu) -> int:
        return 0

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, gpu: FakeGpu) -> FakeGpu:
        assert gpu.parent is not None
        return gpu.parent

    def nvmlDeviceGetCudaComputeCapability(self, gpu: FakeGpu) -> tuple[int, int]:
        self._ask(gpu, "nvmlDeviceGetCudaComputeCapability")
        return 9, 0

    def nvmlDeviceGetMinorNumber(self, gpu: FakeGpu) -> int:
        return self._ask(gpu, "nvmlDeviceGetMinorNumber").minor

    def nvmlDeviceGetComputeMode(self, gpu: FakeGpu) -> int:
        self._ask(gpu, "nvmlDeviceGetComputeMode")
        return 0

    def nvmlDeviceGetPciInfo(self, gpu: FakeGpu) -> SimpleNamespace:
        return SimpleNamespace(busId=f"00000000:1{self._ask(gpu, 'nvmlDeviceGetPciInfo').minor}:00.0")

    def nvmlDeviceGetPowerUsage(self, gpu: FakeGpu) -> int:
        return self._ask(gpu, "nvmlDeviceGetPowerUsage").power_mw

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: FakeGpu) -> int:
        self.energy_reads += 1
        return self._ask(gpu, "nvmlDeviceGetTotalEnergyConsumption").energy_mj

    def nvmlDeviceGetTemperature(self, gpu: FakeGpu, sensor: int) -> int:
        self._ask(gpu, "nvmlDeviceGetTemperature")
        return 40 + sensor

    def nvmlDeviceGetClockInfo(self, gpu: FakeGpu, clock: int) -> int:
        self._ask(gpu, "nvmlDeviceGetClockInfo")
        return {0: 300, 1: 1980, 2: 3201}[clock]

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu: FakeGpu) -> int:
        return self._ask(gpu, "nvmlDeviceGetCurrentClocksEventReasons").throttle_bits

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: FakeGpu) -> int:
        return self._ask(gpu, "nvmlDeviceGetCurrentClocksThrottleReasons").throttle_bits

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: FakeGpu) -> list[SimpleNamespace]:
        self._ask(gpu, "nvmlDeviceGetComputeRunningProcesses")
        return [SimpleNamespace(pid=pid, usedGpuMemory=memory_bytes) for pid, memory_bytes in gpu.processes]

    def nvmlDeviceGetProcessUtilization(self, gpu: FakeGpu, since_us: int) -> list[SimpleNamespace]:
        self._ask(gpu, "nvmlDeviceGetProcessUtilization")
        if not gpu.shares:
            raise FakeNvmlError(6)
        return [SimpleNamespace(pid=pid, smUtil=share, timeStamp=since_us + 1) for pid, share in gpu.shares.items()]

    def nvmlDeviceGetTotalEccErrors(self, gpu: FakeGpu, kind: int, counter: int) -> int:
        return self._ask(gpu, "nvmlDeviceGetTotalEccErrors").ecc[kind]

    def nvmlDeviceGetRemappedRows(self, gpu: FakeGpu) -> tuple[int, int, int, int]:
        self._ask(gpu, "nvmlDeviceGetRemappedRows")
        return 0, 0, 0, 0

    def nvmlDeviceGetPcieReplayCounter(self, gpu: FakeGpu) -> int:
        self._ask(gpu, "nvmlDeviceGetPcieReplayCounter")
        return 2

    def nvmlDeviceGetEncoderUtilization(self, gpu: FakeGpu) -> list[int]:
        self._ask(gpu, "nvmlDeviceGetEncoderUtilization")
        return [0, 167_000]

    def nvmlDeviceGetDecoderUtilization(self, gpu: FakeGpu) -> list[int]:
        self._ask(gpu, "nvmlDeviceGetDecoderUtilization")
        return [0, 167_000]

    def nvmlDeviceGetFieldValues(self, gpu: FakeGpu, fields: list[int]) -> list[SimpleNamespace]:
        self._ask(gpu, "nvmlDeviceGetFieldValues")
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=44)) for _ in fields]

    def nvmlEventSetCreate(self) -> list[FakeGpu]:
        return []

    def nvmlEventSetFree(self, events: list[FakeGpu]) -> None:
        events.clear()

    def nvmlDeviceRegisterEvents(self, gpu: FakeGpu, kinds: int, events: list[FakeGpu]) -> None:
        self._ask(gpu, "nvmlDeviceRegisterEvents")
        events.append(gpu)

    def nvmlEventSetWait_v2(self, events: list[FakeGpu], timeout_ms: int) -> SimpleNamespace:
        for gpu in events:
            if gpu.xids:
                return SimpleNamespace(eventType=8, eventData=gpu.xids.pop(0), device=gpu)
        raise FakeNvmlError(10)

    def nvmlGpmQueryDeviceSupport(self, gpu: FakeGpu) -> SimpleNamespace:
        self._ask(gpu, "nvmlGpmQueryDeviceSupport")
        return SimpleNamespace(isSupportedDevice=bool(gpu.gpm or any(part.gpm for part in gpu.slices)))

    def nvmlGpmSampleAlloc(self) -> SimpleNamespace:
        self.gpm_samples_alive += 1
        return SimpleNamespace(values={})

    def nvmlGpmSampleFree(self, sample: SimpleNamespace) -> None:
        self.gpm_samples_alive -= 1

    def nvmlGpmSampleGet(self, gpu: FakeGpu, sample: SimpleNamespace) -> SimpleNamespace:
        sample.values = dict(self._ask(gpu, "nvmlGpmSampleGet").gpm)
        return sample

    def nvmlGpmMigSampleGet(self, gpu: FakeGpu, instance: int, sample: SimpleNamespace) -> SimpleNamespace:
        sample.values = dict(self._ask(gpu, "nvmlGpmMigSampleGet").slices[instance - 1].gpm)
        return sample

    def c_nvmlGpmMetricsGet_t(self) -> SimpleNamespace:
        return SimpleNamespace(metrics=[SimpleNamespace(metricId=0, value=0.0, nvmlReturn=3) for _ in range(16)])

    def nvmlGpmMetricsGet(self, request: SimpleNamespace) -> SimpleNamespace:
        for metric in request.metrics[: request.numMetrics]:
            if metric.metricId in request.sample2.values:
                metric.value, metric.nvmlReturn = request.sample2.values[metric.metricId], 0
            else:
                metric.nvmlReturn = 3
        return request

    def _ask(self, gpu: FakeGpu, function: str) -> FakeGpu:
        if gpu.lost:
            raise FakeNvmlError(15)
        if gpu.failing:
            raise FakeNvmlError(999)
        if function in gpu.missing:
            raise FakeNvmlError(3)
        return gpu
