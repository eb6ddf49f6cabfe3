"""Inspection: the facts inside a container: a running one, or one of an image, started with the GPUs."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import seatrial
from seatrial.backends import table
from seatrial.backends.base import ImageFacts
from seatrial.backends.containers import injection
from seatrial.backends.containers.client import start_error
from seatrial.backends.containers.engine import ContainerEngine
from seatrial.backends.containers.images import FIND_PYTHON, PYTHON_CANDIDATES
from seatrial.backends.containers.injection import InjectionPlan
from seatrial.errors import CommandTimeoutError, EngineError, SeatrialError
from seatrial.job.in_container import SHM_BYTES_PER_GPU
from seatrial.job.plan import ContainerPlan, Gpu, Mount
from seatrial.probe.programs import read_program
from seatrial.system.agent_archive import pynvml_source
from seatrial.system.command import Completed, json_object

if TYPE_CHECKING:
    from seatrial.doctor.machine import Machine

#: Inspected if no image is named and the engine's store has it: the base of built images.
DEFAULT_IMAGE = "python:3.11-slim-bookworm"
#: Engines start a container in 0.3 to 1 s; CUDA starts in it in 0.3 s a GPU. First imports of torch take longer.
LOOK_S = 20.0
TORCH_S = 60.0
COLLECTIVE_S = 20.0
#: Imports the modules that come on stdin and calls one of them: nothing is mounted, copied or left behind.
LOADER = resources.files("seatrial.doctor").joinpath("loader.py.txt").read_text("utf-8")


@dataclass(frozen=True)
class InspectionRequest:
    """The image or container to look into; the image of a container, by its name or ID, is its own.

    ``python``: interpreter inside, where it is in an unusual place. ``network``: None is the engine's default, as for a
    run; ``host`` for machines that cannot make network namespaces.
    """

    image: str | None = None
    container: str | None = None
    python: str | None = None
    mounts: tuple[Mount, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    shm_bytes: int | None = None
    network: str | None = None


class LookError(Exception):
    """The container could not be looked into. ``stderr``: the engine's. ``error``: ours for it, if it has one."""

    def __init__(self, message: str, stderr: str = "", error: SeatrialError | None = None) -> None:
        super().__init__(message)
        self.stderr = stderr
        self.error = error


class Inspection:
    """Reads the facts inside a container, lazily and each way once."""

    def __init__(self, host: Machine, request: InspectionRequest) -> None:
        self._host = host
        self.request = request

    @cached_property
    def is_process(self) -> bool:
        """Return True without a container: a plain process of this host."""
        return table.runs_here(self._host.on)

    @cached_property
    def inspected(self) -> dict[str, Any] | None:
        """Inspect the requested container; None if it is not there or not running."""
        if self.request.container is None or self._host.engine is None:
            return None
        ended = self._host.ask(*self._backend.call, "container", "inspect", self.request.container)
        if ended is None or ended.exit_code != 0:
            return None
        found: dict[str, Any] = json.loads(ended.stdout)[0]
        return found if (found.get("State") or {}).get("Running") else None

    @cached_property
    def reference(self) -> str | None:
        """Return the image's name; None if none was named and the usual base is not in the store."""
        if self.inspected is not None:
            return str(self.inspected["Image"])
        if self.request.image is not None:
            return self.request.image
        return DEFAULT_IMAGE if self._image(DEFAULT_IMAGE) is not None else None

    @cached_property
    def image(self) -> ImageFacts | None:
        return self._image(self.reference) if self.reference is not None else None

    def _image(self, reference: str) -> ImageFacts | None:
        return self._backend.images.image(reference) if self._host.engine is not None else None

    @cached_property
    def python(self) -> str | None:
        """Return an interpreter >= 3.8 inside; None if there is none."""
        if self.request.python is not None:
            return self.request.python
        if self.is_process:
            return sys.executable
        if self.inspected is not None:
            look = ["-c", FIND_PYTHON]
            return next((at for at in PYTHON_CANDIDATES if not self._exec([at, *look], None, 10.0).exit_code), None)
        if self._host.engine is None or self.reference is None:
            return None
        return self._backend.images.find_python(self.reference)

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """Return the GPUs that it should see: all of the machine, or those that the running container was given."""
        whole_or_slices = (gpu for gpu in self._host.inventory.gpus if not gpu.mig_enabled)
        every = tuple(Gpu.model_validate(gpu, from_attributes=True) for gpu in whole_or_slices)
        return every if self.inspected is None else _given(self.inspected, every)

    @cached_property
    def injection(self) -> InjectionPlan:
        """Choose how the GPUs get in. Raises GpuContractError if no way works."""
        assert self._host.engine is not None
        return injection.choose(self._host.engine, self.gpus, self._host.driver)

    @cached_property
    def still(self) -> dict[str, Any]:
        """Return probe.inside's facts without GPUs: the image alone. Raises LookError."""
        return self._look(gpus=False)

    @cached_property
    def live(self) -> dict[str, Any]:
        """Return probe.inside's facts with the GPUs. Raises LookError."""
        return self._look(gpus=True)

    @cached_property
    def types(self) -> dict[str, Any]:
        """Run probe/programs/torch_check.py; return its result of each type. Raises LookError."""
        return self._program("torch_check.py", ["types"], TORCH_S)

    @cached_property
    def collective(self) -> dict[str, Any]:
        """Run probe/programs/collective_check.py; return its result. Raises LookError."""
        return self._program("collective_check.py", [str(COLLECTIVE_S)], 2 * COLLECTIVE_S + TORCH_S)

    def _look(self, *, gpus: bool) -> dict[str, Any]:
        order = json.dumps({"modules": modules(), "gpus": gpus})
        with_gpus = gpus or self.inspected is not None
        return self._json(self._inside(["-c", LOADER], order, LOOK_S, gpus=with_gpus), "the inspection")

    def _program(self, name: str, arguments: Sequence[str], timeout_s: float) -> dict[str, Any]:
        source = read_program(name)
        # `python -c` puts the working directory on the path, where a json.py may lie.
        start = "import sys; sys.path[:] = [f for f in sys.path if f]; import os; os.environ['SEATRIAL_SOURCE'] = s = "
        text = f"{start}{source!r}\nexec(compile(s, {name!r}, 'exec'), {{'__name__': '__main__'}})"
        return self._json(self._inside(["-c", text, *arguments], None, timeout_s, gpus=True), name)

    def _json(self, ended: Completed, what: str) -> dict[str, Any]:
        if answer := json_object("".join(ended.stdout.splitlines()[-1:])):
            return answer
        if ended.exit_code < 0 or ended.exit_code in (132, 134, 135, 136, 139):
            raise LookError(f"{what} failed with exit code {ended.exit_code}: {ended.last_line()}", ended.stderr)
        engine = self._host.engine.name if self._host.engine is not None else "local"
        error = start_error(engine, ended.argv, ended.exit_code, ended.stderr)
        raise LookError(error.message, ended.stderr, error)

    def _inside(self, words: Sequence[str], input: str | None, timeout_s: float, *, gpus: bool) -> Completed:
        """Run Python inside. Raises LookError."""
        if self.python is None:
            raise LookError("no Python 3.8 or later found in the image")
        argv = [self.python, *words]
        try:
            if self.is_process:
                return self._host.command(argv, timeout_s=timeout_s, input=input or "")
            if self.inspected is not None:
                return self._exec(argv, input, timeout_s)
            return self._start(argv, input, timeout_s, gpus=gpus)
        except CommandTimeoutError as error:
            raise LookError(f"it did not respond within {timeout_s:g} s", error.stderr) from error
        except EngineError as error:
            raise LookError(error.message, error=error) from error

    def _exec(self, argv: Sequence[str], input: str | None, timeout_s: float) -> Completed:
        assert self.request.container is not None
        env = [word for name, value in self.request.env.items() for word in ("--env", f"{name}={value}")]
        command = [*self._backend.call, "exec", "-i", *env, self.request.container, *argv]
        return self._host.command(command, timeout_s=timeout_s, input=input or "")

    def _start(self, argv: Sequence[str], input: str | None, timeout_s: float, *, gpus: bool) -> Completed:
        assert self.reference is not None
        backend, name = self._backend, f"seatrial-doctor-{os.getpid()}-{os.urandom(3).hex()}"
        plan = self._container(name, argv, gpus=gpus)
        call = backend.argv(backend.call, plan, self.reference, remove=True, interactive=True)
        try:
            return self._host.command(call, timeout_s=timeout_s, input=input or "")
        except CommandTimeoutError:
            self._host.command([*backend.call, "kill", name], timeout_s=10)
            raise

    def _container(self, name: str, argv: Sequence[str], *, gpus: bool) -> ContainerPlan:
        engine = self._host.engine
        assert engine is not None
        without = InjectionPlan("none", "", env={"NVIDIA_VISIBLE_DEVICES": "void"})
        inject = self.injection if gpus and self.gpus else without
        own = self.request.env
        path = inject.library_path(own, self.image.env if self.image else {})
        return ContainerPlan(
            name=name,
            hostname=None,
            command=tuple(argv),
            user=None,
            security_opts=("label=disable",) if engine.selinux else (),
            groups=inject.groups,
            workdir="/",
            env={**inject.env, **own, **path},
            mounts=(*self.request.mounts, *inject.mounts),
            devices=inject.devices,
            gpus_flag=inject.gpus_flag,
            runtime=inject.runtime,
            network=self.request.network,
            shm_bytes=self.request.shm_bytes or SHM_BYTES_PER_GPU * max(1, len(self.gpus)),
            read_only_root=False,
            labels={"seatrial.doctor": name},
        )

    @property
    def _backend(self) -> ContainerEngine:
        assert self._host.engine is not None
        return table.engine(self._host.engine.name, self._host.host)


def _given(inspected: Mapping[str, Any], every: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Return the GPUs that a running container requested; all of them if it names none."""
    host = inspected.get("HostConfig") or {}
    ids = [id for request in host.get("DeviceRequests") or [] for id in request.get("DeviceIDs") or []]
    ids += [device.get("PathOnHost", "") for device in host.get("Devices") or []]
    ids = [re.sub(r"^/dev/nvidia(\d+)$|^nvidia\.com/gpu=", r"\1", str(id)) for id in ids]
    named = tuple(gpu for gpu in every if {gpu.uuid, str(gpu.minor if gpu.minor is not None else gpu.index)} & set(ids))
    return named or tuple(every)


def modules() -> dict[str, tuple[bool, str]]:
    """Return name → (is a package, its text) of the modules that the inspection imports: probe and pynvml."""
    package = Path(seatrial.__file__).parent
    found = {"seatrial": (True, "")}
    for file in sorted((package / "probe").glob("*.py")):
        name = "seatrial.probe" + ("" if file.stem == "__init__" else f".{file.stem}")
        found[name] = (file.stem == "__init__", file.read_text())
    found["pynvml"] = (False, pynvml_source().decode())
    return found
