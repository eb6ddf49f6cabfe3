"""Names: what Docker, Podman and containerd call the containers whose IDs the cgroups show."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from seatrial.errors import EngineError
from seatrial.system import command
from seatrial.system.client_call import client_call

#: Unknown IDs are asked for this often: a container of an engine that is not ours to ask stays unknown.
_ASK_AGAIN_S = 5.0
_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Named:
    """A container as its engine knows it."""

    name: str
    image: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


class Names:
    """Asks the engines in the background: one that hangs must not stop the clock of a view.

    Args:
        environ: SEATRIAL_DOCKER and SEATRIAL_PODMAN change how the engines are called.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._calls = {engine: client_call(engine, environ) for engine in ("docker", "podman")}
        self._known: dict[str, Named] = {}
        self._problems: list[str] = []
        self._asked_s = float("-inf")
        self._thread: threading.Thread | None = None

    def known(self) -> Mapping[str, Named]:
        """Container ID → what is known so far."""
        return self._known

    def problems(self) -> list[str]:
        """Engines that are there and would not answer."""
        return self._problems

    def look_up(self, ids: Iterable[str], *, wait: bool = False) -> None:
        """Ask for IDs that are not known yet; ``wait`` until there is an answer."""
        busy = self._thread is not None and self._thread.is_alive()
        if busy or time.monotonic() - self._asked_s < _ASK_AGAIN_S or set(ids) <= set(self._known):
            return
        self._asked_s = time.monotonic()
        self._thread = threading.Thread(target=self._ask, name="engines", daemon=True)
        self._thread.start()
        if wait:
            self._thread.join(_TIMEOUT_S)

    def _ask(self) -> None:
        known: dict[str, Named] = {}
        problems = []
        for ask in (self._docker, self._podman, self._containerd):
            try:
                known.update(ask())
            except EngineError as error:
                if not isinstance(error.__cause__, (FileNotFoundError, PermissionError)):  # there, and in trouble
                    problems.append(error.message)
        self._known = {**self._known, **known}
        self._problems = problems

    def _docker(self) -> dict[str, Named]:
        found = {}
        for line in _lines([*self._calls["docker"], "ps", "--no-trunc", "--format", "{{json .}}"]):
            labels = dict(pair.partition("=")[::2] for pair in str(line.get("Labels") or "").split(","))
            found[str(line.get("ID"))] = Named(str(line.get("Names")), line.get("Image"), labels)
        return found

    def _podman(self) -> dict[str, Named]:
        found = {}
        for entry in _json([*self._calls["podman"], "ps", "--format", "json"], []):
            names = entry.get("Names") or [""]
            found[str(entry.get("Id"))] = Named(names[0], entry.get("Image"), entry.get("Labels") or {})
        return found

    def _containerd(self) -> dict[str, Named]:
        """Kubernetes' nodes have crictl; its containers carry the pod's name as labels."""
        found = {}
        for entry in _json(["crictl", "ps", "-o", "json"], {}).get("containers", []):
            labels = entry.get("labels") or {}
            parts = [labels.get(f"io.kubernetes.{key}") for key in ("pod.namespace", "pod.name", "container.name")]
            name = "/".join(part for part in parts if part) or (entry.get("metadata") or {}).get("name", "?")
            found[str(entry.get("id"))] = Named(name, (entry.get("image") or {}).get("image"), labels)
        return found


def _lines(argv: Sequence[str]) -> list[dict[str, Any]]:
    text = command.check(argv, timeout_s=_TIMEOUT_S).stdout
    return [loaded for line in text.splitlines() if isinstance(loaded := _loads(line), dict)]


def _json(argv: Sequence[str], empty: Any) -> Any:
    loaded = _loads(command.check(argv, timeout_s=_TIMEOUT_S).stdout)
    return loaded if isinstance(loaded, type(empty)) else empty


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
