"""Fakes that work and fakes that fail, beside each Protocol of the code.

Import as ``from fakes import FakeBackend``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from seatrial.backends.base import Backend, EngineFacts, Handle, ImageFacts, State
from seatrial.errors import EngineUnavailableError, GpuContractError, ImageError, SeatrialError
from seatrial.job.model import Job, Target
from seatrial.job.plan import AgentPlan, ContainerPlan, ImagePlan, Plan


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
    }
    return ContainerPlan.model_validate({**fields, **changes})


class FakeBackend:
    """A backend that keeps its runs in memory. ``end`` ends one, as if its agent had."""

    def __init__(self, name: str = "docker", facts: EngineFacts | None = None) -> None:
        self.name = name
        self.answer = facts or EngineFacts(name, available=True, reason=f"{name} 99 answers", version="99")
        self.images = {"python:3.11-slim-bookworm": ImageFacts("sha256:1", None, 125_000_000, python="python3")}
        self.states: dict[str, State] = {}
        self.calls: list[tuple[object, ...]] = []

    def facts(self) -> EngineFacts:
        return self.answer

    def image(self, reference: str) -> ImageFacts | None:
        return self.images.get(reference)

    def pull(self, reference: str, progress: Callable[[str], None] | None = None) -> ImageFacts:
        if progress is not None:
            progress(f"Pulling {reference}")
        return self.images.setdefault(reference, ImageFacts("sha256:2", "sha256:3", 125_000_000))

    def find_python(self, reference: str) -> str | None:
        return self.images[reference].python

    def compile(self, plan: Plan) -> list[str]:
        return [self.name, "run", plan.run_id]

    def start(self, plan: Plan, run_dir: Path) -> Handle:
        handle = Handle(backend=self.name, id=f"id-of-{plan.run_id}", started="1", run_dir=str(run_dir))
        self.states[handle.id] = State("running")
        return handle

    def state(self, handle: Handle) -> State:
        return self.states.get(handle.id, State("gone"))

    def stop(self, handle: Handle, grace_s: float) -> None:
        self.calls.append(("stop", handle.id, grace_s))
        self.end(handle, exit_code=143)

    def kill(self, handle: Handle) -> None:
        self.calls.append(("kill", handle.id))
        self.end(handle, exit_code=137)

    def exec(self, handle: Handle, argv: list[str], *, interactive: bool) -> int:
        self.calls.append(("exec", handle.id, tuple(argv), interactive))
        return 0

    def shell(self, plan: Plan, run_dir: Path) -> int:
        self.calls.append(("shell", plan.run_id))
        return 0

    def logs_tail(self, handle: Handle, lines: int) -> str:
        return "the engine's last words\n"

    def remove(self, handle: Handle) -> None:
        self.states.pop(handle.id, None)

    def end(self, handle: Handle, *, exit_code: int, oom_killed: bool = False) -> None:
        """End a run that is going on."""
        if self.states[handle.id].status == "running":
            self.states[handle.id] = State("exited", exit_code, oom_killed)


class AbsentBackend(FakeBackend):
    """An engine that is not there: facts say so, and everything else raises."""

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

    def pull(self, reference: str, progress: Callable[[str], None] | None = None) -> ImageFacts:
        raise ImageError(f"Image {reference} cannot be pulled", run=f"{self.name} pull {reference}")


def failing_backends() -> dict[str, Backend]:
    """One of each way to fail, by its name, for parametrised tests."""
    return {
        "absent": AbsentBackend(),
        "no-gpu": RefusingBackend(GpuContractError("docker cannot give GPUs to containers", run="install toolkit")),
        "dying": DyingBackend(),
        "forgetful": ForgetfulBackend(),
        "offline": OfflineBackend(),
    }
