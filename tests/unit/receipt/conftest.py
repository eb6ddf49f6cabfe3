"""Runs made up by hand, one for each way a run ends: what agent, host and target would have written, and left."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from seatrial.backends.base import ImageFacts, State
from seatrial.common.agent_plan import AgentPlan
from seatrial.events import EvidenceLog, follow_chain
from seatrial.job.model import Criteria, DataMount, Job, Target
from seatrial.job.plan import Gpu, ImagePlan, Plan
from seatrial.receipt.judge import judge
from seatrial.receipt.model import Receipt
from seatrial.receipt.section import Block, Rows

#: 2026-11-20 12:00:00 UTC, when every run here starts.
START = 1795176000.0
H200 = Gpu(
    index=0,
    uuid="GPU-de421f49-0f0c-4a5b-9c8d-1e2f3a4b5c6d",
    name="NVIDIA H200",
    memory_bytes=150_754_820_096,
    compute_capability="9.0",
    minor=0,
)
OTHER = H200.model_copy(update={"index": 1, "minor": 1, "uuid": "GPU-aaaabbbb-0f0c-4a5b-9c8d-1e2f3a4b5c6d"})
EXITED = State("exited", 0)


def blocks_of(receipt: Receipt, title: str) -> list[Block]:
    """Return the blocks of the section with this title."""
    return [block for section, blocks in receipt.sections() if section.title == title for block in blocks]


def rows_of(receipt: Receipt, title: str) -> dict[str, str]:
    """Return label → value of the section with this title."""
    blocks = blocks_of(receipt, title)
    return {row.label: row.value for block in blocks if isinstance(block, Rows) for row in block.rows}


@dataclass
class Scenario:
    """A run's plan, events, logs and leftovers; ``judge`` writes them to a folder and judges them."""

    events: list[dict[str, Any]]
    gpus: tuple[Gpu, ...] = ()
    gpu_mode: str = "none"
    backend: str = "docker"
    stdout: str = ""
    stderr: str = ""
    index: str | None = None
    state: State | None = EXITED
    skipped_lines: int = 0
    model: str | None = "models/mnist.pth"
    models_folder: bool = True
    args: tuple[str, ...] = ("--epochs", "5")
    job: dict[str, Any] = field(default_factory=dict)
    criteria: dict[str, Any] = field(default_factory=dict)
    agent: dict[str, Any] = field(default_factory=dict)

    def judge(self, folder: Path) -> Receipt:
        project, run_dir = folder / "project", folder / "run"
        (project / "models").mkdir(parents=True, exist_ok=True)
        run_dir.mkdir()
        (run_dir / "stdout.log").write_text(self.stdout)
        (run_dir / "stderr.log").write_text(self.stderr)
        if self.index is not None:
            (run_dir / "output.idx").write_text(self.index)
        if self.model:
            path = project / self.model
            path.write_bytes(b"weights" * 1000)
            os.utime(path, (START + 40, START + 40))
        log = EvidenceLog(str(folder / "events.jsonl"), "host")
        log.append(self.events)
        log.close()
        live = self.state is not None and self.state.status == "running"
        local = self.backend == "local"
        return judge(
            self.plan(project),
            self.events,
            skipped_lines=self.skipped_lines,
            state=self.state,
            run_dir=run_dir,
            now=START + 60,
            image=None if local else ImageFacts("sha256:" + "ab" * 32, None),
            chain=None if live else follow_chain(str(folder / "events.jsonl")),
        )

    def plan(self, project: Path) -> Plan:
        argv = ("python3", "train.py", "--epochs", "5")
        return Plan(
            run_id="20261120-120000-train",
            created_at="2026-11-20T12:00:00Z",
            job=Job(
                project=project,
                target=Target(kind="script", value="train.py", args=tuple(self.args)),
                models=DataMount(source=project / "models", read_only=False) if self.models_folder else None,
                criteria=Criteria(**self.criteria),
                **self.job,
            ),
            backend=self.backend,
            injection="nvidia-runtime" if self.gpus else "none",
            gpus=self.gpus,
            image=None if self.backend == "local" else ImagePlan(tag="seatrial/train:0f3a9c", build=True),
            agent=AgentPlan(
                run_id="20261120-120000-train",
                argv=argv,
                workdir="/workspace",
                run_dir="/seatrial/run",
                gpu_mode=self.gpu_mode,
                gpus=self.gpus,
                **self.agent,
            ),
            git_commit="1f0e208c5d1b",
        )


def at(at_s: float, type: str, source: str = "agent", /, **keys: Any) -> dict[str, Any]:
    return {"t": START + at_s, "type": type, "source": source, **keys}


#: The agent's report if no container separates it from its target.
ALTERABLE = "agent and target are processes of one user"


def prologue(
    gpus: tuple[Gpu, ...] = (), ok: bool = True, error: str | None = None, alterable: str | None = None
) -> list[dict[str, Any]]:
    """Everything before the target's start."""
    events = [
        at(0, "host.launched", "host", backend="docker", host="hal", image_bytes=3_210_000_000),
        at(0.6, "agent.started", pid=1, hostname="c0ffee", python="3.11.2", agent_version="0.1.0", uid=1000, gid=1000,
           cgroup={"memory_limit_bytes": 16 * 2**30, "cpu_quota_cores": None}, alterable=alterable),
    ]  # fmt: skip
    if gpus:
        visible = [{"uuid": gpu.uuid, "name": gpu.name, "index": gpu.index} for gpu in gpus] if ok else []
        events.append(
            at(1.0, "gpu.check", expected=[gpu.uuid for gpu in gpus], visible=visible, driver="580.159.04",
               cuda_driver=13000, ok=ok, error=error)
        )  # fmt: skip
    if gpus and ok:
        torch = {"version": "2.11.0", "cuda": "13.0", "arch_list": ["sm_90"]}
        events += [at(1.2, "gpu.kernel", uuid=g.uuid, kind="driver", ok=True, ms=12.4, error=None) for g in gpus]
        events += [
            at(2.9, "gpu.kernel", uuid=g.uuid, kind="torch", ok=True, ms=310, error=None, torch=torch) for g in gpus
        ]
    return events


def running(
    seconds: int,
    gpus: tuple[Gpu, ...] = (),
    used: tuple[Gpu, ...] | None = None,
    utilization: float = 88.0,
    **sample: Any,
) -> list[dict[str, Any]]:
    """The target at work from second 3 on: contexts, samples and an epoch's lines every five seconds."""
    used = gpus if used is None else used
    framework = {"name": "torch", "version": "2.11.0"}
    events = [at(3, "target.started", pid=7, argv=["python3", "train.py"], launcher="none", framework=framework)]
    events += [at(5.1, "gpu.context", uuid=g.uuid, pid=7, evidence="nvml-process", memory_bytes=543e6) for g in used]
    for second in range(seconds):
        t = 3.5 + second
        busy = second >= 2
        gpu_samples = [
            {
                "uuid": gpu.uuid,
                "utilization_pct": (utilization + 6 * math.sin(second)) if busy and gpu in used else 0.0,
                "sm_activity_pct": (31 + 4 * math.sin(second / 2)) if busy and gpu in used else 0.0,
                "sm_occupancy_pct": 12.0,
                "tensor_activity_pct": (6 + math.sin(second)) if busy and gpu in used else 0.0,
                "dram_activity_pct": (14 + 2 * math.sin(second)) if busy and gpu in used else 0.0,
                "memory_used_bytes": 1.9e9 + 4e7 * min(second, 10) if busy and gpu in used else 6e8,
                "memory_total_bytes": 150_754_820_096,
                "power_w": 240 + 30 * math.sin(second / 3) if busy and gpu in used else 76.0,
                "energy_j": None,
                "temperature_c": 30 + min(second, 12),
                "sm_clock_mhz": 1980,
                "throttle_reasons": [],
            }
            for gpu in gpus
        ]
        host = {"cpu_cores": 1.1 + 0.2 * math.sin(second), "memory_bytes": 1.2e9 + 1e7 * second,
                "memory_limit_bytes": 16 * 2**30, "shm_used_bytes": 1e6, "shm_total_bytes": 2 * 2**30,
                "processes": 3}  # fmt: skip
        events.append(at(t, "sample", gpus=gpu_samples, **{**host, **sample}))
        if second >= 3:
            step = 200 * (second - 2)
            events.append(
                at(t + 0.2, "step", "target", step=step, epoch=second // 5, phase="train", images=12800,
                   loss=2.3 * math.exp(-second / 6) + 0.01, accuracy=1 - 0.9 * math.exp(-second / 5))
            )  # fmt: skip
        if second % 5 == 4:
            accuracy = 1 - 0.3 * math.exp(-second / 5) - 0.008
            events.append(
                at(t + 0.3, "step", "target", step=200 * (second - 2), phase="test", loss=0.03, accuracy=accuracy)
            )
    return sorted(events, key=lambda event: event["t"])


def ending(end_s: float, exit_code: int | None = 0, cause: str = "exited", **keys: Any) -> list[dict[str, Any]]:
    exited = {"exit_code": exit_code, "signal": None, "cause": cause, "seconds": end_s - 3,
              "max_rss_bytes": 1_400_000_000, "oom_kills": 0, **keys}  # fmt: skip
    return [
        at(end_s, "target.exited", **exited),
        at(end_s + 0.1, "agent.finished", exit_code=exit_code, energy_j={H200.uuid: 7400.5, OTHER.uuid: 2100.0}),
    ]


def stopped_by(origin: str, at_s: float, source: str = "agent", pid: tuple[int, ...] = (7,)) -> dict[str, Any]:
    return at(at_s, "signal", source, signal=15, name="SIGTERM", origin=origin, forwarded_to=[*pid])


def run_of(gpus: tuple[Gpu, ...] = (), **keys: Any) -> Scenario:
    """A run that required these GPUs, used them for 32 s and ended well, unless ``keys`` has other events."""
    events = keys.pop("events", None) or prologue(gpus) + running(32, gpus) + ending(36)
    return Scenario(events, gpus, keys.pop("gpu_mode", "required" if gpus else "none"), **keys)


def failed(events: Any, code: int, stderr: str = "", gpus: tuple[Gpu, ...] = (), **keys: Any) -> Scenario:
    return run_of(gpus, events=events, stderr=stderr, **{"state": State("exited", code), "model": None, **keys})


def _traceback(line: int, call: str, error: str) -> str:
    place = f'  File "/workspace/train.py", line {line}, in <module>\n    {call}'
    return f"Traceback (most recent call last):\n{place}\n{error}\n"


_UVM = at(
    1.1, "finding", id="uvm-node-missing", severity="error",
    message="CUDA sees 0 of 1 GPU: /dev/nvidia-uvm is not in the container",
    cause="The device nodes were passed by hand and this one was left out",
    fix="docker run --gpus all … or add --device /dev/nvidia-uvm", evidence=["cuInit: 999"],
)  # fmt: skip
_OUT_OF_MEMORY = _traceback(
    41, "loss = model(images)",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 139.81 GiB "
    "of which 8.00 GiB is free.",
)  # fmt: skip
_BUS_ERROR = (
    "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n"
    + _traceback(
        30, "for images, labels in loader:", "RuntimeError: DataLoader worker (pid 40) is killed by signal: Bus error. "
    )
)
_MARKUP = _traceback(
    12,
    'main(b"<script>alert(1)</script>")',
    "ValueError: expected 10 classes, got <script>alert(1)</script> & [bold]11[/bold]",
)
_NO_CAPABILITIES = 'could not select device driver "" with capabilities: [[gpu]]'
_LIMIT = {"timeout_s": 10.0}


def _garbage() -> Scenario:
    good = run_of(skipped_lines=3, criteria={"finished_within_s": 60.0})
    odd = {"type": "step", "loss": "NaN", "t": "soon"}, {"type": 7, "t": None}, {"type": "sample", "gpus": 3}
    good.events[10:10] = odd
    good.events.insert(20, at(-5000, "note", message="the clock went \x1b[31mback\x1b[0m"))
    return good


SCENARIOS = {
    "h200-success": lambda: run_of((H200,), criteria={"metrics": {"accuracy": ">= 0.985"}}),
    "cpu-success": lambda: run_of(criteria={"finished_within_s": 60.0}),
    "cpu-fallback": lambda: run_of(
        events=prologue(alterable=ALTERABLE)[1:] + running(32) + ending(36), gpu_mode="auto-cpu", backend="local"
    ),
    "contract-failure": lambda: failed(
        [*prologue((H200,), ok=False, error="cuInit returned 999"), _UVM,
         *ending(1.2, None, "gpu-contract", seconds=0.0)], 3, gpus=(H200,),
    ),
    "gpu-not-used": lambda: run_of(
        (H200, OTHER), events=prologue((H200, OTHER)) + running(32, (H200, OTHER), used=(H200,)) + ending(36)
    ),
    "cuda-oom": lambda: failed(
        prologue((H200,)) + running(8, (H200,)) + ending(12, 1), 1, _OUT_OF_MEMORY, (H200,)
    ),
    "host-oom": lambda: failed(
        prologue() + running(8, memory_bytes=16 * 2**30 - 5e6) + ending(12, None, "signal", signal=9, oom_kills=1),
        137, state=State("exited", 137, oom_killed=True),
    ),
    "shared-memory": lambda: failed(
        prologue((H200,)) + running(6, (H200,), shm_used_bytes=2 * 2**30) + ending(10, 1), 1, _BUS_ERROR, (H200,)
    ),
    "script-error": lambda: failed(prologue() + running(2) + ending(6, 1), 1, _MARKUP),
    "killed": lambda: failed(prologue() + running(5) + ending(8, None, "signal", signal=9), 137),
    "stopped": lambda: failed(
        [*prologue(), *running(5), stopped_by("engine", 9), *ending(9.5, None, "signal", signal=15)], 143
    ),
    "timeout": lambda: failed(
        [*prologue(), *running(10), stopped_by("timeout", 13), *ending(14, None, "timeout", signal=15)],
        124, job=dict(_LIMIT), agent=dict(_LIMIT),
    ),
    "agent-lost": lambda: failed(prologue((H200,)) + running(9, (H200,)), 137, gpus=(H200,)),
    "engine-error": lambda: Scenario(
        [], state=State("exited", 127, error="exec: no such file or directory"), model=None
    ),
    "no-gpu-support": lambda: Scenario(
        [], (H200,), "required", state=State("exited", 128, error=_NO_CAPABILITIES), model=None
    ),
    "garbage": _garbage,
}  # fmt: skip


@pytest.fixture
def scenario():
    """A scenario by its name, fresh, to be bent before it is judged."""
    return lambda name: SCENARIOS[name]()


@pytest.fixture(params=SCENARIOS)
def every_scenario(request):
    """(name, scenario), all of them in turn."""
    return request.param, SCENARIOS[request.param]()
