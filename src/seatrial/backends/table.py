"""The registry of backends. To add one: implement base.Backend in a file of this folder, and add a row."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from seatrial.backends.base import Backend, EngineFacts, Traits
from seatrial.errors import EngineUnavailableError, UsageError
from seatrial.job.plan import Choice, EngineAddress
from seatrial.system.command import remembered
from seatrial.system.host import Host
from seatrial.system.text import nearest

if TYPE_CHECKING:
    from seatrial.backends.containers.engine import ContainerEngine


def _imported(module: str, name: str) -> Any:
    """Import a backend when it is needed: a plan for one of them needs none of the others."""
    return getattr(import_module(f"seatrial.backends.{module}"), name)


#: Backends that run containers on this machine.
ENGINES: dict[str, Callable[[], type[ContainerEngine]]] = {
    "docker": lambda: _imported("containers.docker_and_podman", "Docker"),
    "podman": lambda: _imported("containers.docker_and_podman", "Podman"),
}

#: Name → the backend for an environment, in the order that ``auto`` tries: those that isolate the run come first.
BACKENDS: dict[str, Callable[[Host], Backend]] = {
    "docker": lambda host: engine("docker", host),
    "podman": lambda host: engine("podman", host),
    "local": lambda host: _imported("local", "Local")(),
    "k8s": lambda host: _imported("kubernetes.backend", "Kubernetes")(host),
}


def engine(name: str, host: Host) -> ContainerEngine:
    """Return the engine of this name in ENGINES, called as the environment sets."""
    return ENGINES[name]()(host.client_call(name))


def backend(name: str, host: Host, at: EngineAddress | None = None) -> Backend:
    """Return the backend of this name, on the engine of the environment or at ``at``. Raises UsageError naming all."""
    if name not in BACKENDS:
        close = "k8s" if name.lower().startswith("kube") else nearest(name, ["auto", *BACKENDS]) or "auto"
        message = f"Unknown backend {name!r}; available: auto, {', '.join(BACKENDS)}"
        raise UsageError(message, run=f"seatrial run … --on {close}")
    made = BACKENDS[name](host)
    return made if at is None else made.bound_to(at)


def traits(name: str) -> Traits | None:
    """Return the traits of a backend; None for ``auto`` and unknown names. Contacts no engine."""
    return BACKENDS[name](Host({})).traits if name in BACKENDS else None


def runs_here(name: str) -> bool:
    """Return whether a backend runs the target as the user's own process; False for ``auto`` and unknown names."""
    known = traits(name)
    return known is not None and not known.isolates


def is_elsewhere(name: str) -> bool:
    """Return whether a backend's runs are on other machines; False for ``auto`` and unknown names."""
    known = traits(name)
    return known is not None and not known.on_this_host


def on_this_host() -> Iterator[str]:
    """Yield the backends of this machine in the order of ``auto``; those after the first that works are not loaded."""
    return (name for name in BACKENDS if not is_elsewhere(name))  # a test may have added one


def choose(
    requested: str, host: Host, *, gpus_wanted: bool = False, offline: bool = False
) -> tuple[Backend, EngineFacts, Choice]:
    """Return the requested backend, or for ``auto`` the first that works, with its facts and the reason.

    ``offline``: nothing will be started, so no cluster need answer. Raises EngineUnavailableError: none is there.
    """
    if requested != "auto":
        chosen = backend(requested, host)
        facts = _facts(chosen, host)
        if not facts.available and (chosen.traits.on_this_host or not offline):
            raise EngineUnavailableError(facts.reason[:1].upper() + facts.reason[1:], run=facts.fix)
        why = Choice(what="backend", value=requested, reason=f"requested; {facts.reason}")
        return _bound(chosen, facts), facts, why
    passed_over: list[str] = []
    for name in on_this_host():
        candidate = backend(name, host)
        facts = _facts(candidate, host)
        without_gpu = gpus_wanted and facts.desktop and "microsoft" not in platform.release().lower()
        if facts.available and not without_gpu:
            reason = "; ".join([f"first available: {facts.reason}", *passed_over])
            return _bound(candidate, facts), facts, Choice(what="backend", value=name, reason=reason)
        obstacle = "Docker Desktop's virtual machine has no GPU" if facts.available else facts.reason
        passed_over.append(f"not {name}: {obstacle}")
    raise EngineUnavailableError("No backend is available", cause="; ".join(passed_over), run="seatrial doctor")


def _bound(candidate: Backend, facts: EngineFacts) -> Backend:
    """Bind to the engine that has just answered: a context that is changed meanwhile leads nowhere else."""
    return candidate if facts.address is None else candidate.bound_to(facts.address)


def _facts(candidate: Backend, host: Host) -> EngineFacts:
    question = ("facts", candidate.name, tuple(host.client_call(candidate.name)))
    return remembered(question, candidate.facts, lambda facts: facts.available)
