"""Services: the trackers that are up for a project's runs, as records in the state folder beside them."""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from seatrial.errors import UntrustedPathError
from seatrial.system import nofollow
from seatrial.system.files import write_atomically

TrackerName = Literal["tensorboard", "mlflow"]
TRACKERS: tuple[TrackerName, ...] = ("tensorboard", "mlflow")

#: In a project, beside its runs' places: MLflow's own data.
MLFLOW_FOLDER = (".seatrial", "mlflow")

#: What is worth seeing first: MLflow 3 begins with its pages for language models.
_FIRST_PAGE: dict[TrackerName, str] = {
    "tensorboard": "#timeseries",
    "mlflow": "#/experiments/0/runs?workflowType=machine_learning",
}

_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Service:
    """One tracker that is up.

    Attributes:
        url: as a browser of this machine opens it, without a token.
        token: None for a server of the user's, whose login is in their environment.
        engine, container: None for a server of the user's.
        network: the containers' network on which runs find it; None: it is on the host's.
        inside_url: its address on that network.
    """

    name: TrackerName
    url: str
    token: str | None = None
    engine: str | None = None
    container: str | None = None
    network: str | None = None
    inside_url: str | None = None

    @property
    def ours(self) -> bool:
        return self.container is not None

    @property
    def door(self) -> str:
        """The address with the token: what the user opens once."""
        page = _FIRST_PAGE[self.name] if self.ours else ""
        return f"{self.url}?token={self.token}{page}" if self.token else f"{self.url}{page}"


class ServiceStore:
    """The services of one project; mode 0600, since tokens are in there."""

    def __init__(self, record: Path) -> None:
        """``record``: the project's, RunStore.record."""
        self.root = record / "services"

    def all(self) -> dict[str, Service]:
        return {name: service for name in TRACKERS if (service := self.read(name)) is not None}

    def read(self, name: str) -> Service | None:
        """None where it is not up, or its record cannot be read."""
        try:
            loaded: Any = json.loads(nofollow.read_regular(self.root / f"{name}.json", most_bytes=_MOST_BYTES))
            known = {each.name for each in fields(Service)}
            return Service(**{key: value for key, value in loaded.items() if key in known})
        except (FileNotFoundError, UntrustedPathError, ValueError, TypeError, AttributeError, RecursionError):
            return None

    def save(self, service: Service) -> None:
        """Raises DiskError."""
        self._folder()
        write_atomically(self.root / f"{service.name}.json", json.dumps(asdict(service)).encode(), mode=0o600)

    def remove(self, name: str) -> None:
        (self.root / f"{name}.json").unlink(missing_ok=True)

    def token(self, name: str) -> str:
        """The same at each start, so that bookmarks and browsers' cookies hold."""
        path = self._folder() / f"{name}.token"
        try:
            kept = nofollow.read_regular(path, most_bytes=_MOST_BYTES).decode().strip()
        except (FileNotFoundError, UntrustedPathError, UnicodeDecodeError):
            kept = ""
        if len(kept) < 16:
            kept = secrets.token_urlsafe(24)
            write_atomically(path, kept.encode(), mode=0o600)
        return kept

    def _folder(self) -> Path:
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self.root
