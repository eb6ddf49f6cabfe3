"""Plan services: which of them become runs, on which GPUs, with what around their command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import dropwhile
from pathlib import Path

from seatrial.backends.base import EngineFacts
from seatrial.backends.containers.engine import ContainerEngine
from seatrial.backends.containers.mounts import real_source
from seatrial.compose.read import ComposeFile
from seatrial.compose.service import GpuAsk, Service, foreign_ask
from seatrial.errors import ConfigError, GpuContractError, GpuRequestError, SeatrialError
from seatrial.job.gpu_request import GpuRequest
from seatrial.job.gpus import Selection
from seatrial.job.model import Job, Target
from seatrial.job.plan import ContainerPlan, Mount, Plan
from seatrial.job.script import ScriptFacts, script_facts
from seatrial.job.units import parse_seconds
from seatrial.planning.container.parts import compared
from seatrial.planning.host import HostFacts, another_machine
from seatrial.planning.plan import make_plan, select_gpus
from seatrial.planning.site import ServiceSite, Site
from seatrial.runs.launch import run_site
from seatrial.runs.run import Run

_PYTHON = re.compile(r"(.*/)?python[\d.]*")


@dataclass(frozen=True)
class ComposeContext:
    """The facts that plans are made from, read once; ``job``: seatrial.toml's values for every service.

    ``gpus``: replaces the request of each service that has one; None keeps the file's.
    """

    file: ComposeFile
    job: Job
    backend: ContainerEngine
    engine: EngineFacts
    host: HostFacts
    gpus: GpuRequest | None = None

    def asks(self) -> dict[str, GpuAsk]:
        """Return each service's GPU request, replaced or not; of a variable alone, only on a machine with GPUs."""
        found = {}
        for name, service in self.file.services.items():
            ask = self.file.gpu_ask(service)
            by_variable = ask is not None and ask.ways == ("environment",) and self.gpus is None
            if ask is None or (by_variable and not (self.host.gpus or self.job.image.target)):
                continue
            found[name] = ask if self.gpus is None else replace(ask, request=self.gpus)
        if self.gpus is not None and self.gpus.kind != "none" and not found:
            raise ConfigError(
                f"--gpus {self.gpus}: no service of {self.file.path.name} requests a GPU, so there is none to replace",
                run="seatrial up --gpus none   # or request one: https://docs.docker.com/compose/how-tos/gpu-support/",
            )
        return found


def with_images(file: ComposeFile, backend: ContainerEngine, *, pythons: bool = False) -> ComposeFile:
    """Return the services with the facts of their local images; ``pythons``: started once to find each one's Python."""
    services = {}
    found: dict[object, str | None] = {}  # images of one build differ only in their labels
    for name, service in file.services.items():
        facts = backend.images.image(service.image)
        if facts is not None and pythons:
            inside = (facts.layers, *facts.env.items()) if facts.layers else facts.id
            if inside not in found:
                found[inside] = backend.images.find_python(service.image)
            facts = replace(facts, python=found[inside])
        services[name] = replace(service, facts=facts)
    return replace(file, services=services)


def select(context: ComposeContext, leased: Mapping[str, str]) -> dict[str, Selection]:
    """Select GPUs for each service: those that may run at once get different ones, if they request a count.

    ``leased``: UUID → run, of others. Raises GpuContractError, GpuRequestError: with the service and its line.
    """
    chosen: dict[str, Selection] = {}
    asks = context.asks()
    # Named devices first: a count must not take what another service names.
    for name in sorted(asks, key=lambda each: asks[each].request.kind != "devices"):
        ask = asks[name]
        taken = dict(leased)
        for other, selection in chosen.items():
            if not context.file.never_together(name, other):
                taken |= {gpu.uuid: f"the service {other}" for gpu in selection.gpus}
        job = context.job.changed(gpus=ask.request)
        another = another_machine(job, context.host)
        try:
            chosen[name] = another.selection() if another else select_gpus(job, ScriptFacts(), context.host, taken)
        except (GpuContractError, GpuRequestError) as error:
            place = context.file.place(name, *ask.path)
            problem = error.message.removeprefix(f"--gpus {ask.request}: ")
            message = f"{place}: {name} reserves {_in_words(ask.request)}: {problem}"
            on_cpu = f"{context.file.command} --gpus none   # on the CPU; the machine: seatrial doctor"
            raise type(error)(message, cause=error.cause, run=on_cpu) from None
    return chosen


def _in_words(request: GpuRequest) -> str:
    if request.kind == "devices":
        return f"GPU {', '.join(request.devices)}"
    if request.kind == "count":
        return f"{request.count} GPU{'s' if request.count != 1 else ''}"
    return "every GPU"


def becomes_run(service: Service, ask: GpuAsk | None, python: str | None) -> bool:
    """Return True for a measured service: one that requests NVIDIA's GPUs, or a task that an agent can accompany."""
    if service.replicas != 1 or foreign_ask(service) is not None:
        return False
    return ask is not None or (service.is_task and python is not None)


def plan_service(
    context: ComposeContext, service: Service, run: Run, *, selection: Selection, ask: GpuAsk | None
) -> Plan:
    """Plan one service as a run; by its image's name alone if the image is absent and may not be built or pulled."""
    grace_s = context.job.grace_s
    with suppress(SeatrialError, KeyError):
        grace_s = parse_seconds(str(service.config["stop_grace_period"]))
    site = _site(context, service, run)
    assert site.service is not None
    python = service.facts.python if service.facts else None
    watch, argv, mounts = context.job.watch, site.service.argv, site.service.mounts
    watch = watch if service.is_task else watch.changed(hang_after_s=None)
    args = argv if argv and argv[0][:1] != "(" else ()
    target = Target(kind="image", value="", args=args, command=one_command(argv))
    gpus = ask.request if ask else GpuRequest("none")
    image = context.job.image.changed(ready=service.image, python=python)
    job = context.job.changed(
        name=service.name, target=target, gpus=gpus, grace_s=grace_s, image=image, mounts=mounts, watch=watch
    )
    another = another_machine(job, context.host)
    return make_plan(job, site._replace(selection=selection, another=another), _facts(service, argv))


def compare_service(context: ComposeContext, service: Service, run: Run) -> tuple[ContainerPlan, dict[str, str]] | None:
    """Return what a service that becomes no run gets to start on the checked folders.

    None: it mounts nothing by path, its command is unknown, or no Python can come along.
    """
    site = _site(context, service, run)
    assert site.service is not None
    if service.facts is None or site.interpreter is None or not site.service.mounts or not site.service.argv:
        return None
    return compared(context.job, site, service.facts.env)


def _site(context: ComposeContext, service: Service, run: Run) -> Site:
    """Return the site of the service's run. Raises UsageError: a mount leads out of the project through a link."""
    project, state = context.job.project, context.host.state_folder
    sources = [(real_source(Path(each.source), project, "--mount", state=state), each) for each in service.by_path]
    own = ServiceSite(
        name=service.name,
        argv=service.argv if service.argv or service.facts else (f"(the command of {service.image})",),
        workdir=str(service.config.get("working_dir") or (service.facts.workdir if service.facts else "") or "/"),
        environment=service.environment,
        mounts=tuple(Mount(source=at, target=each.target, read_only=each.read_only) for at, each in sources),
        filled=tuple(volume.target for volume in service.volumes),
        read_only_root=bool(service.config.get("read_only")),
    )
    return run_site(run, project, context.backend, context.engine, context.host)._replace(service=own)


def one_command(argv: Sequence[str]) -> str:
    """Return a command on one line, quoted for a shell; YAML also shows it as a comment."""
    words = [f'"{word}"' if "'" in word and not set(word) & set('"$`\\!') else shlex.quote(word) for word in argv]
    return " ".join(words if len(argv) > 1 else argv).replace("\n", "\\n")  # a single word may be a sentence


def _facts(service: Service, argv: tuple[str, ...]) -> ScriptFacts:
    """Find the framework of the service's script in the folder that it is built from; it decides the check."""
    if service.context is None:
        return ScriptFacts()
    words = [*dropwhile(lambda word: not _PYTHON.fullmatch(word), argv)][1:]
    script = next((word for word in words if not word.startswith("-")), None)
    candidates = [] if script is None else [service.context / script.lstrip("/"), service.context / Path(script).name]
    found = next((path for path in candidates if path.suffix == ".py" and path.is_file()), None)
    if found is None:
        return ScriptFacts()
    with suppress(SeatrialError, OSError, ValueError):
        target = Target(kind="script", value=str(found.relative_to(service.context)))
        return ScriptFacts(framework=script_facts(target, service.context, any_python=True).framework)
    return ScriptFacts()


def checked_gpus(text: str | None) -> GpuRequest | None:
    """Parse ``--gpus`` of the command line; None if it was not given. Raises ConfigError for ``auto``."""
    request = GpuRequest.parse(text) if text is not None else None
    if request is not None and request.kind == "auto":
        raise ConfigError("--gpus auto means nothing here: the Compose file has the request", run="seatrial up")
    return request
